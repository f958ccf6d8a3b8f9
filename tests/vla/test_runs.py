"""RLinf's unmodified script with its own configurations of real models, on LIBERO, through Ray.

`full` runs for each model. `VLA_RUNS=all` runs every mode with one and with four update epochs; see
docs/models.md.
"""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE
from tests.checkouts import checkout
from tests.libero_assets import ASSETS, needs_assets, needs_libero
from tests.runs.conftest import Run, Runner
from tests.vla.families import Family

ROOT = Path(__file__).parents[2]
MODES = ("full", "train", "rollout", "streamer", "off")
DEFAULT = ("full", 4)
CASES = [(mode, epochs) for mode in MODES for epochs in (4, 1)]
STEPS = 3
ROUNDING = 1e-4
"""Inference and learner agree to the last bit here, in batches of one and of two, though in bfloat16."""
BUCKETS = (
    "weight_syncer.type=bucket",
    "+weight_syncer.bucket={bucket_size:536870912,bucket_dtype:null,is_agent:false,load_instant:true}",
)
"""The transport that both sides have, whatever the configuration asks for."""
EVERYTHING = os.environ.get("VLA_RUNS") == "all"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.libero,
    pytest.mark.render,
    needs_libero,
    needs_assets,
]


@pytest.fixture(scope="module")
def place(family, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    family.write(made)
    return made


def train(runs: Runner, family: Family, place: Path, *overrides: str, run_dir: str = "run") -> Run:
    """RLinf's script with the configuration of `family`, three steps, to its end."""
    home = checkout("rlinf-v0.3")
    embodied = home / "examples" / "embodiment"
    found = os.environ["PYTHONPATH"].split(os.pathsep)
    path = (ROOT / "tests" / "vla" / "site", *found, home, ROOT, ROOT / "rlinf_async" / "_hydra")
    runs.environment |= {
        **family.environment(place),
        "PYTHONPATH": os.pathsep.join(str(Path(each).resolve()) for each in path),
        "EMBODIED_PATH": str(embodied),
        ASSETS_VARIABLE: str(ASSETS),
    }
    directory = runs.directory / run_dir
    process = runs.start(
        sys.executable,
        str(embodied / "train_embodied_agent.py"),
        *("--config-path", str(embodied / "config"), "--config-name", family.config),
        *family.overrides(place),
        f"runner.logger.log_path={directory}",
        f"runner.max_epochs={STEPS}",
        "runner.save_interval=-1",
        *overrides,
    )
    output, _ = process.communicate(timeout=580)
    return Run(process.returncode, output, directory)


@pytest.mark.parametrize(("mode", "epochs"), CASES)
def test_a_real_model_trains_on_libero_by_rlinfs_own_script(runs, gl, family, place, mode, epochs):
    if (mode, epochs) != DEFAULT and not EVERYTHING:
        pytest.skip("VLA_RUNS=all runs every mode")
    runs.environment["MUJOCO_GL"] = gl
    if mode == "off":
        runs.environment["RLINF_EXT_MODULE"] = "tests.vla.stock_on_cpu"
    syncer = BUCKETS if mode == "off" else ()
    run = train(runs, family, place, f"+async.mode={mode}", f"++algorithm.update_epoch={epochs}", *syncer)
    assert run.status == 0, run.output
    if mode == "off":
        assert run.output.count("Metric Table") == STEPS
        return
    assert f"produced {2 * STEPS} = trained {2 * STEPS} + in flight 0 + 0 refused" in run.output
    assert all((line["train/actor/grad_norm"] > 0) == family.signal for line in run.metrics)
    assert run.metrics[0]["train/premise/logprobs"] < ROUNDING
    if mode in ("full", "train"):
        first, lag_0 = run.metrics[0], "train/mismatch/lag_0/kl"
        assert first["train/actor/behaviour_weight"] == pytest.approx(1, abs=ROUNDING)
        assert lag_0 in first
        assert all(abs(line.get(lag_0, 0)) < ROUNDING for line in run.metrics)
