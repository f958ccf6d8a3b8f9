"""Level 1 with a fixed lag under veRL: a run that was killed and goes on ends as one that was not."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("metaworld", reason="Meta-World is not installed")

import torch

from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest
from tests.runs.conftest import Run, timeless
from tests.runs_verl.conftest import VerlRunner

pytestmark = pytest.mark.ray

STEPS = 6
SETTINGS = (
    "async.mode=train",
    "async.deterministic=true",
    # Two shards, which take turns at random if nobody sees to it.
    "async.rollout.shards=2",
    # Four decisions seldom solve a task; only the dense reward tells one trajectory from another.
    "env.train.reward_kind=dense",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.save_freq=2",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    f"trainer.total_training_steps={STEPS}",
)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_run_that_was_killed_and_goes_on_ends_as_if_it_had_not_been_interrupted(runs: VerlRunner) -> None:
    whole = runs.train("verl_metaworld_ppo_mlp", *SETTINGS, run_dir="whole")
    assert whole.status == 0, whole.output
    assert len({line["env/return"] for line in whole.metrics}) == STEPS

    place = runs.directory / "killed"
    process = runs.begin("verl_metaworld_ppo_mlp", *SETTINGS, run_dir="killed")
    assert process.stdout is not None
    lines = [""]
    while f" 3/{STEPS}" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines  # the run has ended before its third step
    os.kill(RunReader(place).status().driver, signal.SIGKILL)
    process.communicate(timeout=60)
    saved = find_newest(place / "checkpoints").step
    assert 2 <= saved < STEPS
    again = runs.train("verl_metaworld_ppo_mlp", *SETTINGS, run_dir="killed")
    assert again.status == 0, again.output
    assert f"going on from step {saved}: " in again.output

    # A step that was trained again after the kill is as it was last.
    metrics = [timeless(RunReader(run.directory).metrics()) for run in (whole, again)]
    assert metrics[0] == metrics[1]
    assert [line["step"] for line in metrics[0]] == list(range(1, STEPS + 1))
    assert books(again) == books(whole)
    weights = [torch.load(file_of(run, "actor/model_*.pt"), weights_only=False) for run in (whole, again)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(plain(weights[0][name]), plain(weights[1][name])) for name in weights[0])

    assert "schedule of learning rates" not in again.output
    longer = (*SETTINGS, f"trainer.total_training_steps={STEPS + 1}")
    extended = runs.train("verl_metaworld_ppo_mlp", *longer, run_dir="killed")
    assert extended.status == 0, extended.output
    said = " ".join(extended.output.split())
    assert "a lag below 1" in said
    assert f"another learning-rate schedule (total_training_steps: {STEPS}, now {STEPS + 1})" in said


def file_of(run: Run, pattern: str) -> Path:
    (file,) = run.directory.glob(f"checkpoints/global_step_{STEPS}/{pattern}")
    return file


def books(run: Run) -> dict[str, Any]:
    return json.loads(file_of(run, "async_state.json").read_text())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is in this file, which of one rank is all of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
