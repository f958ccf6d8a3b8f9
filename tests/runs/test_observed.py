"""A run that stalls says who waits for what, to those who watch it and to those who ask."""

import json
import os
import signal
import subprocess

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinf_async.hosts.rlinf.metrics import STEP_METRIC, SYNC_METRIC, WORK_METRICS
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.observe.reading.spans import read_spans
from tests.runs.conftest import COMMAND, Runner
from tests.runs.waiting_env import PIPE

pytestmark = pytest.mark.ray

STEPS, ENVS, DECISIONS = 2, 8, 2
STALLING = (
    "async.mode=full",
    "async.advanced.stall_s=2",
    f"env.train.total_num_envs={ENVS}",
    f"env.train.max_episode_steps={DECISIONS * 10}",
    "env.train.env_class=waiting",
    "actor.micro_batch_size=8",
    "actor.global_batch_size=16",
    "algorithm.update_epoch=1",
    f"runner.max_epochs={STEPS}",
)


def asked(runs: Runner, *command: str) -> str:
    done = subprocess.run(
        [*COMMAND, *command], env=runs.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_stall_is_explained_and_every_process_can_be_looked_at(runs: Runner) -> None:
    run = runs.directory / "run"
    place = f"runner.logger.log_path={run}"
    runs.declare("rlinf_async.envs", "waiting", "tests.runs.waiting_env:WaitingEnv")
    runs.environment[PIPE] = pipe = str(runs.directory / "pipe")
    os.mkfifo(pipe)
    process = runs.start(*COMMAND, "train", "-n", "bench/emulated", *STALLING, place)
    assert process.stdout is not None
    # On a busy machine the start of a process may be a stall as well, and is named before.
    before = []
    while f"env worker 0: {ENVS} shards resetting" not in (line := process.stdout.readline()):
        assert line, "the run ended without a word"
        before.append(line)
    assert any("no activity has ended for" in line for line in before)
    seen = asked(runs, "status", str(run), "--stacks")
    assert f"{ENVS} shards resetting" in seen
    assert "learner rank 0: waiting for trajectories" in seen
    assert all(
        f"\n{name}\n" in seen for name in ("env worker 0", "inference rank 0", "learner rank 0", "driver")
    )
    go_on = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    output, _ = process.communicate(timeout=300)
    os.close(go_on)
    assert process.returncode == 0, output
    assert "The run has ended: 2 steps" in asked(runs, "status", str(run))

    logged = EventAccumulator(str(run / "tensorboard"))
    logged.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    in_rlinf_words = {STEP_METRIC, SYNC_METRIC, *(tags[0] for tags in WORK_METRICS.values())}
    assert set(logged.Tags()["scalars"]) == set().union(*lines) - {"step"} | in_rlinf_words

    kinds = [span["kind"] for span in read_spans(run / "trace")]
    assert kinds.count("rollout") == STEPS * ENVS
    assert kinds.count("step") == STEPS * ENVS * DECISIONS
    # For no value behind the last decision: the episodes have ended there.
    assert kinds.count("ask") == STEPS * ENVS * DECISIONS
    assert kinds.count("learn") == kinds.count("optimizer step") == STEPS
    assert kinds.count("load") == kinds.count("copy") == STEPS + 1
    asked(runs, "trace", str(run))
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    arrows = [event["name"] for event in events if event["ph"] == "s"]
    assert arrows.count("action") == STEPS * ENVS * DECISIONS
    through = [event["name"] for event in events if event["ph"] == "t"]
    assert through.count("action") == STEPS * ENVS * DECISIONS
    assert arrows.count("trajectory") == STEPS * ENVS
    assert arrows.count("weights") == STEPS + 1
    assert str(runs.directory) not in (run / "trace.json").read_text()


FORETOLD = (
    "env worker 0: its use of address space grows by",
    "env worker 0: its use of descriptors grows by",
)


@pytest.mark.nightly
def test_what_environments_keep_is_foretold_and_shown_by_status_and_report(runs: Runner) -> None:
    run = runs.directory / "run"
    overrides = [
        each for each in STALLING if not each.startswith(("env.train.env_class", "runner.max_epochs"))
    ]
    runs.declare("rlinf_async.envs", "growing", "tests.runs.growing_env:GrowingEnv")
    process = runs.start(
        *(*COMMAND, "train", "-n", "bench/emulated", *overrides, "env.train.env_class=growing"),
        *("runner.max_epochs=100000", f"runner.logger.log_path={run}"),
    )
    assert process.stdout is not None
    awaited, lines = set(FORETOLD), []
    while awaited:
        lines.append(process.stdout.readline())
        assert lines[-1], lines  # the run has ended before
        awaited -= {sentence for sentence in awaited if sentence in lines[-1]}
    said = asked(runs, "status", str(run))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert runs.survivors(process) == []

    status = json.loads((run / "status.json").read_text())
    holds = status["holds"]
    grows = {what: holds["env worker 0"][what]["per_minute"] for what in ("memory", "descriptors")}
    assert min(grows.values()) > 0
    assert holds["the run"]["disk"]["per_minute"] > 0  # traces and metrics
    assert holds["inference rank 0"]["descriptors"]["per_minute"] < grows["descriptors"] / 100
    page = run / "report.html"
    asked(runs, "report", str(run), "--output", str(page))
    for sentence in FORETOLD:
        assert sentence in said
        assert sentence in page.read_text()
    faults = [fault for fault in read_faults(run) if fault.what == "runs out"]
    assert {fault.process for fault in faults} == {"env worker 0"}
