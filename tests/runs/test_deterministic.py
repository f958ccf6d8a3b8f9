"""Level 1 with a fixed lag, on RLinf: two runs, one result."""

import pytest
import torch

from tests.runs.conftest import Run, small

pytestmark = pytest.mark.ray

STEPS = 20
FIXED_LAG = small(
    "metaworld_ppo_mlp",
    "async.mode=train",
    "async.deterministic=true",
    # Two shards, which take turns at random if nobody sees to it.
    "rollout.pipeline_stage_num=2",
    # Four decisions seldom solve a task; only the dense reward tells one trajectory from another.
    "env.train.reward_kind=dense",
    f"runner.max_epochs={STEPS}",
    f"runner.save_interval={STEPS}",
)


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


def timeless(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    clocks = ("async/busy/", "async/busiest/", "async/batch/wait_s/", "async/step_seconds")
    # Batches are counted when a step is reported, and by then some of the next step have been answered.
    clocks = (*clocks, "async/env_steps_per_second", "async/batch/size", "async/publication")
    return [{k: v for k, v in line.items() if not k.startswith(clocks)} for line in metrics]
