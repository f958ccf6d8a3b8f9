"""Level 1 with a fixed lag, on RLinf: two runs, one result, and the same after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs.conftest import Case, Run, small, timeless

pytestmark = pytest.mark.ray

STEPS = 20
SETTINGS = (
    "async.mode=train",
    "async.deterministic=true",
    # Two shards, which take turns at random if nobody sees to it.
    "rollout.pipeline_stage_num=2",
    # Four decisions seldom solve a task; only the dense reward tells one trajectory from another.
    "env.train.reward_kind=dense",
)
FIXED_LAG = small(
    "metaworld_ppo_mlp", *SETTINGS, f"runner.max_epochs={STEPS}", f"runner.save_interval={STEPS}"
)
SHORT = 8
WHOLE = small("metaworld_ppo_mlp", *SETTINGS, f"runner.max_epochs={SHORT}", "runner.save_interval=2")


def resumed(step: int) -> Case:
    config, overrides = WHOLE
    saved = f"{{run-0}}/metaworld_ppo_mlp/checkpoints/global_step_{step}"
    return config, (*overrides, f"runner.resume_dir='{saved}'")


@pytest.mark.nightly  # so are a run and its continuations, below
@pytest.mark.shared_run(FIXED_LAG, FIXED_LAG)
def test_twenty_steps_with_a_fixed_lag_give_the_same_weights_twice_bit_for_bit(ended: list[Run]) -> None:
    for run in ended:
        ages = [(line["async/staleness/min"], line["async/staleness/max"]) for line in run.metrics]
        assert ages == [(0, 0), *[(1, 1)] * (STEPS - 1)]
    one, other = (timeless(run.metrics) for run in ended)
    assert one == other
    assert len({line["train/actor/grad_norm"] for line in one}) == STEPS
    weights = [torch.load(path) for run in ended for path in run.directory.rglob("full_weights.pt")]
    assert len(weights) == 2
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def going_on_from(*steps: int, marks: tuple[pytest.MarkDecorator, ...] = ()) -> Any:
    asked_for = pytest.mark.shared_run(WHOLE, *(resumed(step) for step in steps))
    return pytest.param(steps, marks=(asked_for, *marks))


@pytest.mark.parametrize(
    "steps", [going_on_from(4), going_on_from(2, 6, marks=(pytest.mark.nightly,))], ids=str
)
def test_a_run_that_goes_on_from_any_of_its_checkpoints_ends_as_if_it_had_not_been_interrupted(
    ended: list[Run], steps: tuple[int, ...]
) -> None:
    whole, *others = ended
    for step, other in zip(steps, others, strict=True):
        assert timeless(other.metrics) == timeless(whole.metrics)[step:]
        assert books(other) == books(whole)
        weights = [torch.load(weights_of(run)) for run in (whole, other)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert len({line["env/return"] for line in whole.metrics}) == SHORT


def books(run: Run) -> dict[str, Any]:
    (file,) = run.directory.rglob("global_step_8/async_state.json")
    return json.loads(file.read_text())


def weights_of(run: Run) -> Path:
    (file,) = run.directory.rglob("global_step_8/**/full_weights.pt")
    return file
