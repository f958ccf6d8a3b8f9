"""Env workers and inference ranks that are killed are started again in their places, and the run goes on."""

import json
import os
import signal
from pathlib import Path

import pytest

from rlinf_async.observe.reading.faults import read_faults
from tests.runs.conftest import COMMAND, SMALL, Run, Runner

pytestmark = pytest.mark.ray

STEPS = 12


def kill(run_dir: Path, *processes: str) -> None:
    doing = json.loads((run_dir / "status.json").read_text())["processes"]
    for name in processes:
        os.kill(doing[name]["pid"], signal.SIGKILL)


def test_a_run_outlives_the_death_of_an_env_worker_and_of_all_inference_ranks(
    runs: Runner, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = runs.start(
        *(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *SMALL),
        f"runner.max_epochs={STEPS}",
        *(f"cluster.component_placement.{name}.placement=0:0-1" for name in ("env", "rollout")),
        # Else the other env worker takes on its places, and the run may end before it is back.
        "async.advanced.balance=exact",
        f"runner.logger.log_path={run_dir}",
    )
    assert process.stdout is not None
    seen = []
    while f"2/{STEPS}" not in (line := process.stdout.readline()):
        seen.append(line)
        assert line, "".join(seen)
    kill(run_dir, "env worker 1", "inference rank 0", "inference rank 1")
    output, _ = process.communicate(timeout=240)
    run = Run(process.returncode, "".join(seen) + output, run_dir)
    assert run.status == 0, run.output
    assert len(run.metrics) == STEPS
    trajectories = run.summary["trajectories"]
    refused = sum(trajectories["refused"].values())
    assert (trajectories["trained"], trajectories["in_flight"]) == (8 * STEPS, 0)
    assert trajectories["produced"] == 8 * STEPS + refused
    assert set(trajectories["refused"]) <= {"env worker died"}
    assert max(line["async/staleness/max"] for line in run.metrics) <= 1
    restarts = {
        name: sum(line[f"async/restarts/{name}"] for line in run.metrics)
        for name in ("env_worker", "inference")
    }
    assert restarts["env_worker"] == 1
    assert restarts["inference"] >= 1  # the other one may not be back yet
    faults = [(fault.process, fault.what, fault.action) for fault in read_faults(run_dir)]
    assert ("env worker 1", "env worker died", "started again in its place") in faults
    assert {what for _, what, _ in faults} == {"env worker died", "inference rank died"}
    assert runs.survivors(process) == []
