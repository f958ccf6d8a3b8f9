"""Evaluation, checkpoints and resuming, beside training that does not stop for them."""

import json
import os
import re
import signal
import subprocess

import pytest

from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest
from tests.runs.conftest import COMMAND, SMALL, Run, Runner, small

pytestmark = pytest.mark.ray

EVALUATE = ("runner.val_check_interval=2", "runner.save_interval=2", "env.eval.total_num_envs=8")
LAG_TWO = (
    *EVALUATE,
    "async.train.max_staleness=2",
    "+actor.optim.lr_scheduler=cosine",
    "+actor.optim.total_training_steps=${runner.max_epochs}",
)
SAVED = "metaworld_ppo_mlp/checkpoints/global_step_2"


@pytest.mark.shared_run(
    small("metaworld_ppo_mlp", *LAG_TWO, "runner.max_epochs=2"),
    small("metaworld_ppo_mlp", *LAG_TWO, "runner.max_epochs=5", f"runner.resume_dir='{{run-0}}/{SAVED}'"),
)
def test_a_resumed_run_goes_on_within_the_staleness_bound(ended: list[Run]) -> None:
    first, second = ended
    saved = first.directory / SAVED
    assert "eval/success_once" in first.metrics[-1]
    state = json.loads((saved / "async_state.json").read_text())
    assert (state["version"], state["trained"]) == (2, 16)

    assert [line["step"] for line in second.metrics] == [3, 4, 5]
    assert second.metrics[0]["async/staleness/max"] == 0  # nothing older than the checkpoint exists
    assert second.summary["staleness"]["max"] <= 2
    assert second.summary["trajectories"]["trained"] == 16 + 24
    assert second.summary["env_steps"] == 24 * 4
    stretched = "another learning-rate schedule (total_training_steps: 2, now 5)"
    assert stretched in " ".join(second.output.split())
    assert "schedule of learning rates" not in first.output


def test_a_killed_run_starts_itself_again_and_a_terminated_one_saves_and_nothing_is_lost(
    runs: Runner,
) -> None:
    place, steps = runs.directory / "run", "runner.max_epochs=100000"
    process = runs.start(
        *(*COMMAND, "train", "--restarts", "2", "--restart-wait", "0"),
        *("-n", "metaworld_ppo_mlp", *SMALL, steps, "runner.save_interval=2"),
        f"runner.logger.log_path={place}",
    )
    until(process, "5/100000")
    os.kill(RunReader(place).status().driver, signal.SIGKILL)
    again = until(process, "restart 1 of 2 from step")
    resumed = re.search(r"from step (\d+), in 0 s: the run was ended by SIGKILL", again)
    assert resumed, again
    resumed_at = int(resumed[1])
    assert resumed_at >= 4
    # What was in the buffer of the checkpoint is there again, all of it.
    assert re.search(
        r"\d+ trajectories that had not been trained are restored$", until(process, "going on from step")
    )
    until(process, f" {resumed_at + 2}/100000")

    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "asked to end by SIGTERM" in output
    assert runs.survivors(process) == []
    newest = find_newest(place / "metaworld_ppo_mlp" / "checkpoints")
    assert newest.folder is not None
    assert newest.skipped == ()
    assert newest.step > resumed_at
    books = json.loads((newest.folder / "async_state.json").read_text())
    assert books["trained"] == 8 * newest.step
    assert "lost at resume" not in books["refused"]
    pieces = json.loads((newest.folder / "buffer" / "pieces.json").read_text())["pieces"]
    in_flight = books["produced"] - books["trained"] - sum(books["refused"].values())
    assert sum(piece["size"] for piece in pieces) == in_flight
    steps_seen = [int(line["step"]) for line in RunReader(place).metrics()]
    assert steps_seen == list(range(1, newest.step + 1))
    assert [fault.what for fault in read_faults(place)] == ["run failed", "terminated"]


def until(process: subprocess.Popen[str], words: str) -> str:
    """The first line of its output, from here on, that has these words."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, f"the run ended before it said {words!r}"
    return line
