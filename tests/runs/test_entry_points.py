"""A third package replaces one class without a fork."""

from pathlib import Path

import pytest

from tests.runs.conftest import Runner
from tests.runs.throwaway import install

pytestmark = pytest.mark.ray


def test_a_run_uses_the_env_worker_of_another_installed_package(runs: Runner, tmp_path: Path) -> None:
    site = install(tmp_path, "rlinf_async.workers: env = MarkingEnvWorker")
    mark = tmp_path / "mark"
    runs.environment |= {"PYTHONPATH": str(site), "THROWAWAY_MARK": str(mark)}
    run = runs.train("metaworld_ppo_mlp", "runner.max_epochs=1")
    assert run.status == 0, run.output
    assert mark.read_text() == "MarkingEnvWorker"
