"""Under veRL, too, an env worker and an inference rank that are killed are started again in their places."""

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("metaworld", reason="Meta-World is not installed")

from rlinf_async.observe.reading.faults import read_faults
from tests.listening import beyond_loopback
from tests.runs.conftest import Run
from tests.runs_verl.conftest import VerlRunner

pytestmark = pytest.mark.ray

STEPS = 8


def test_a_run_outlives_the_death_of_its_env_worker_and_of_its_inference_rank(
    runs: VerlRunner, tmp_path: Path
) -> None:
    process = runs.begin("verl_metaworld_ppo_mlp", f"trainer.total_training_steps={STEPS}")
    run_dir = tmp_path / "run"
    assert process.stdout is not None
    seen = []
    while f"2/{STEPS}" not in (line := process.stdout.readline()):
        seen.append(line)
        assert line, "".join(seen)
    assert {listener.partition(" ")[0] for listener in beyond_loopback(process.pid)} <= {"ray::LearnerWorker"}
    doing = json.loads((run_dir / "status.json").read_text())["processes"]
    for name in ("env worker 0", "inference rank 0"):
        os.kill(doing[name]["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=240)
    run = Run(process.returncode, "".join(seen) + output, run_dir)
    assert run.status == 0, run.output
    books = run.summary["trajectories"]
    assert (books["trained"], books["in_flight"]) == (8 * STEPS, 0)
    assert set(books["refused"]) <= {"env worker died"}
    assert max(line["async/staleness/max"] for line in run.metrics) <= 1
    for name in ("env_worker", "inference"):
        assert sum(line[f"async/restarts/{name}"] for line in run.metrics) == 1
    assert {(fault.what, fault.action) for fault in read_faults(run_dir)} == {
        ("env worker died", "started again in its place"),
        ("inference rank died", "started again in its place"),
    }
    assert runs.survivors(process) == []
