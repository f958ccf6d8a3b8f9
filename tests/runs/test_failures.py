"""A run that cannot go on says why, at once, and leaves nothing behind."""

import json
import signal
from pathlib import Path

import pytest

from rlinf_async.lab.trace import write_trace
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.reading.status import status_of
from tests.runs.conftest import COMMAND, SMALL, Run, Runner, small
from tests.runs.throwaway import install

pytestmark = pytest.mark.ray

BROKEN = {
    "env": (
        "rlinf_async.envs: metaworld_task = BrokenEnv",
        "FloatingPointError",
        "the simulator has exploded",
    ),
    "inference": (
        "rlinf_async.workers: rollout = BrokenRolloutWorker",
        "ArithmeticError",
        "the forward pass has no memory left",
    ),
    "learner": (
        "rlinf_async.workers: actor = BrokenActorWorker",
        "ZeroDivisionError",
        "the optimizer divides by zero",
    ),
    "publication": (
        "rlinf_async.workers: actor = UnsendingActorWorker",
        "BufferError",
        "the weights do not fit",
    ),
    "death": ("rlinf_async.workers: rollout = KilledRolloutWorker", "inference rank 0", "has died"),
}


LIKE_OTHERS = ("inference", "learner", "publication", "death")
"""Errors of a worker, as that of the environments is; tests/runs/test_endings.py has a death."""
NOTHING_OUTLIVED = ("async.survive.env_restarts=0", "async.survive.process_restarts=0")


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.nightly) if part in LIKE_OTHERS else part for part in BROKEN],
)
def test_the_first_error_ends_the_run_with_status_one(runs: Runner, tmp_path: Path, part: str) -> None:
    entry_point, error, words = BROKEN[part]
    runs.environment["PYTHONPATH"] = str(install(tmp_path, entry_point))
    place = f"runner.logger.log_path={tmp_path / 'run'}"
    overrides = (*SMALL, *NOTHING_OUTLIVED, "runner.max_epochs=50", place)
    process = runs.start(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *overrides)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert error in output
    assert words in output
    *_, last = output.splitlines()
    assert error in last, output
    assert "Traceback" not in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["ended"] == "failed"
    assert summary["ending"] in last
    books = summary["trajectories"]
    assert books["produced"] == books["trained"] + books["in_flight"] + sum(books["refused"].values())
    assert "Traceback" in (tmp_path / "run" / "traceback.txt").read_text()
    assert runs.survivors(process) == []
    # What every process did until then can be looked at.
    assert write_trace(tmp_path / "run", tmp_path / "trace.json") > 50
    assert status_of(tmp_path / "run")


@pytest.mark.shared_run(
    small(
        "metaworld_ppo_mlp",
        "env.train.env_class=flaky",
        "async.rollout.shards=2",
        "env.train.processes=1",
        "runner.max_epochs=6",
    )
)
def test_environments_that_fail_cost_a_rollout_each(ended: list[Run]) -> None:
    (run,) = ended
    faults = {fault.shard: fault for fault in read_faults(run.directory)}
    assert {shard: fault.what for shard, fault in faults.items()} == {0: "env failed", 1: "simulator died"}
    assert faults[0].error == "FloatingPointError: the simulator has exploded"
    assert "was killed by signal 9 (SIGKILL)" in faults[1].error
    for shard, fault in faults.items():
        assert f"shard {shard}: {fault.what}" in run.output
    books = run.summary["trajectories"]
    assert books == {"produced": 56, "trained": 48, "in_flight": 0, "refused": {"env failed": 8}}
    assert sum(line["async/restarts/env"] for line in run.metrics) == 2
    assert max(line["async/staleness/max"] for line in run.metrics) <= 1
    assert "2 faults" in status_of(run.directory)[1]
    assert len([span for span in read_spans(run.directory / "trace") if span["kind"] == "restart"]) == 2


def test_an_interrupt_ends_in_order_and_leaves_no_process(runs: Runner) -> None:
    process = runs.start(
        *COMMAND,
        "train",
        "-n",
        "metaworld_ppo_mlp",
        *SMALL,
        "runner.max_epochs=100000",
        "env.train.processes=2",
    )
    assert process.stdout is not None
    while "2/100000" not in (line := process.stdout.readline()):
        assert line, "the run ended before it was interrupted"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)  # five seconds where nothing else runs; ten are promised
    assert process.returncode == 130, output
    assert "closing the gate" in output
    assert runs.survivors(process) == []
