"""Evaluation, checkpoints and resuming, beside training that does not stop for them."""

import json

import pytest

from tests.runs.conftest import Runner

pytestmark = pytest.mark.ray

EVALUATE = ("runner.val_check_interval=2", "runner.save_interval=2", "env.eval.total_num_envs=8")


def test_a_resumed_run_goes_on_within_the_staleness_bound(runs: Runner) -> None:
    first = runs.train("metaworld_ppo_mlp", *EVALUATE, "runner.max_epochs=2", "async.train.max_staleness=2")
    assert first.status == 0, first.output
    assert "eval/success_once" in first.metrics[-1]
    saved = first.directory / "metaworld_ppo_mlp" / "checkpoints" / "global_step_2"
    state = json.loads((saved / "async_state.json").read_text())
    assert (state["version"], state["trained"]) == (2, 16)

    second = runs.train(
        "metaworld_ppo_mlp",
        *EVALUATE,
        "runner.max_epochs=5",
        "async.train.max_staleness=2",
        f"runner.resume_dir={saved}",
        run_dir="resumed",
    )
    assert second.status == 0, second.output
    assert [line["step"] for line in second.metrics] == [3, 4, 5]
    assert second.metrics[0]["async/staleness/max"] == 0  # nothing older than the checkpoint exists
    assert second.summary["staleness"]["max"] <= 2
    assert second.summary["trajectories"]["trained"] == 16 + 24
    assert second.summary["env_steps"] == 24 * 4


def test_where_rlinfs_own_transport_is_asked_for_the_learner_waits_for_it(runs: Runner) -> None:
    run = runs.train("metaworld_ppo_mlp", *EVALUATE, "runner.max_epochs=4", "async.publication=host")
    assert run.status == 0, run.output
    assert [line["step"] for line in run.metrics if "eval/success_once" in line] == [2, 4]
    assert run.summary["trajectories"]["trained"] == 32
    assert run.summary["staleness"]["max"] <= 1
    assert all(line["async/publication_seconds"] > 0 for line in run.metrics)
    assert not any("async/publication/lag_seconds" in line for line in run.metrics)
