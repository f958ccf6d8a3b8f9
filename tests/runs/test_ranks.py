"""Several ranks of every worker, and the placements that RLinf accepts."""

import pytest

from tests.runs.conftest import Run, small

pytestmark = pytest.mark.ray

TWO = tuple(f"cluster.component_placement.{name}.placement=0:0-1" for name in ("env", "rollout", "actor"))


@pytest.mark.nightly  # two ranks of every worker are in tests/runs/test_nodes.py as well
@pytest.mark.shared_run(
    small(
        "metaworld_ppo_mlp",
        *(*TWO, "async.mode=streamer", "actor.micro_batch_size=4", "async.advanced.normalization=running"),
    )
)
def test_two_ranks_of_every_worker_take_the_same_steps(ended: list[Run]) -> None:
    (run,) = ended
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    assert run.summary["batch_size"]["max"] <= 4


SCORED = ("async.mode=full", "actor.micro_batch_size=4", "algorithm.update_epoch=1")


@pytest.mark.nightly  # two ranks on two nodes are: tests/runs/test_nodes.py
@pytest.mark.shared_run(small("metaworld_ppo_mlp", *TWO, *SCORED))
def test_two_learner_ranks_agree_on_who_scores_and_take_the_same_steps(ended: list[Run]) -> None:
    (run,) = ended
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    assert run.metrics[0]["train/scored_by_inference"] == 0.0
    assert all(abs(line["train/actor/grad_norm"]) > 0 for line in run.metrics)


@pytest.mark.shared_run(
    small(
        "metaworld_grpo_mlp",
        "cluster.component_placement.env.placement=0:0-2",
        "env.train.total_num_envs=12",
        "algorithm.group_size=2",
        "env.eval.group_size=1",
        "actor.global_batch_size=24",
        "runner.max_epochs=2",
    )
)
def test_three_env_workers_feed_one_inference_rank(ended: list[Run]) -> None:
    (run,) = ended
    assert run.summary["trajectories"]["trained"] == 24
