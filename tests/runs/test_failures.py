"""A run that cannot go on says why, at once, and leaves nothing behind."""

import signal
from pathlib import Path

import pytest

from rlinf_async.status import status_of
from rlinf_async.trace.command import write_trace
from tests.runs.conftest import COMMAND, SMALL, Runner
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
        "MemoryError",
        "the object store is full",
    ),
    "death": ("rlinf_async.workers: rollout = KilledRolloutWorker", "ActorDiedError", "KilledRolloutWorker"),
}


@pytest.mark.parametrize("part", list(BROKEN))
def test_the_first_error_ends_the_run_with_status_one(runs: Runner, tmp_path: Path, part: str) -> None:
    entry_point, error, words = BROKEN[part]
    runs.environment["PYTHONPATH"] = str(install(tmp_path, entry_point))
    place = f"runner.logger.log_path={tmp_path / 'run'}"
    process = runs.start(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *SMALL, "runner.max_epochs=50", place)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert error in output
    assert words in output
    assert "PeerError" not in output.splitlines()[-1]
    assert runs.survivors(process) == []
    # What every process did until then can be looked at.
    assert write_trace(tmp_path / "run", tmp_path / "trace.json") > 50
    assert status_of(tmp_path / "run")


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


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("async.train.max_stalenes=2", "did you mean async.train.max_staleness"),
        ("async.rollout.shards=3", "nearest number of shards"),
        ("reward.use_reward_model=true", "reward.use_reward_model"),
    ],
)
def test_bad_input_is_one_clear_error_before_ray_starts(runs: Runner, override: str, words: str) -> None:
    process = runs.start(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *SMALL, override)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert words in output
    assert "Traceback" not in output
    assert "ray" not in output.lower().replace("arrays", "")
