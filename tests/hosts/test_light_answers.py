"""`explain` and `doctor` answer without the imports of a run: those take seconds."""

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

from tests.fresh import printed

HEAVY = {"ray", "rlinf", "torch", "transformers", "verl"}
COMMAND = """
import sys
from typer.testing import CliRunner
from rlinf_async import cli
result = CliRunner().invoke(cli.app, {})
assert result.exit_code == 0, result.output
print(*{{name.partition(".")[0] for name in sys.modules}})
"""


def imported(*words):
    """The packages that a command has imported when it ends."""
    return set(
        printed(COMMAND.format([*words]), ground="import typer, rich.console, omegaconf, hydra").split()
    )


def test_a_config_without_a_framework_is_explained_without_any_and_without_torch():
    assert not imported("explain", "local/point_reach") & HEAVY


@pytest.mark.parametrize("policy", ["mlp", "vla"])
def test_a_config_for_verl_is_explained_without_verl_ray_and_torch(policy):
    pytest.importorskip("verl", reason="veRL is not installed")
    assert not imported("explain", f"verl_metaworld_ppo_{policy}") & HEAVY


def test_a_config_for_rlinf_is_explained_without_building_its_vla():
    """RLinf's package is read for the resolvers of its configs, torch counts the GPUs."""
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    assert imported("explain", "metaworld_ppo_vla") & HEAVY == {"rlinf", "torch"}
