"""Isaac Lab's way into RLinf, with a stand-in for its simulator: a block in the YAML is all it takes."""

import os
import sys
from pathlib import Path

import pytest

from rlinf_async.observe.reading.run_reader import RunReader
from tests.runs.conftest import Runner

pytestmark = [pytest.mark.ray, pytest.mark.every_python]
FOLDER = Path(__file__).with_name("isaac_like")
ROOT = Path(__file__).parents[2]


def launch(runs: Runner, folder: Path) -> tuple[int, str]:
    runs.environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = runs.start(sys.executable, str(FOLDER / "launcher.py"), str(folder), "ppo_reach")
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def test_its_launcher_trains_three_steps_with_all_levels_on(runs: Runner) -> None:
    status, output = launch(runs, FOLDER)
    assert status == 0, output
    assert "CLASSES StreamingActorWorker BatchingRolloutWorker ShardedEnvWorker AsyncEmbodiedRunner" in output
    assert "levels train + rollout + streamer; 1 shards of 8 environments" in output
    assert "produced 48 = trained 48 + in flight 0 + 0 refused" in output
    lines = RunReader(runs.directory / "run").metrics()
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["train/actor/grad_norm"] > 0 for line in lines)
    # Of the two pieces of a batch the first can be anchored before the second has come.
    assert all(line["train/anchored"] in (0.0, 0.5) for line in lines)


def test_a_yaml_without_a_weight_syncer_is_refused_in_one_line_before_ray(runs: Runner) -> None:
    folder = runs.directory / "configs"
    folder.mkdir()
    text = (FOLDER / "ppo_reach.yaml").read_text()
    before, block = text.index("weight_syncer:"), text.index("async:")
    (folder / "ppo_reach.yaml").write_text(text[:before] + text[block:])
    status, output = launch(runs, folder)
    assert status == 1, output
    (line,) = (line for line in output.splitlines() if "no weight_syncer: RLinf's workers" in line)
    assert "use '+weight_syncer={type: bucket, bucket: {bucket_size: 536870912}}'" in line
    assert "Started a local Ray instance" not in output
    assert not (runs.directory / "run").exists()
