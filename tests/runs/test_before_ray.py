"""What cannot run ends before Ray starts. These tests start no cluster, and share the machine with others."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlinf_async.lab.bench import cell
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.ray_runtime.cluster.template import SWITCH_VARIABLE
from tests.runs.conftest import COMMAND, SMALL, Runner
from tests.runs.quick_bench import QUICK
from tests.runs.test_entry_script import SCRIPT, run_script, users_config


@pytest.fixture
def runs(runs: Runner) -> Runner:
    """There are no workers to import anything for."""
    runs.environment[SWITCH_VARIABLE] = "0"
    return runs


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("async.train.max_stalenes=2", "did you mean async.train.max_staleness"),
        pytest.param("async.rollout.shards=3", "nearest number of shards", marks=pytest.mark.nightly),
        pytest.param("reward.use_reward_model=true", "reward.use_reward_model", marks=pytest.mark.nightly),
    ],
)
def test_bad_input_is_one_clear_error_before_ray_starts(runs: Runner, override: str, words: str) -> None:
    process = runs.start(*COMMAND, "train", "-n", "metaworld_ppo_mlp", *SMALL, override)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert words in output
    assert "Traceback" not in output
    assert "ray" not in output.lower().replace("arrays", "")


def test_a_wrong_block_ends_a_script_before_ray_starts(runs: Runner, tmp_path: Path) -> None:
    status, output = run_script(runs, SCRIPT, users_config(tmp_path), "+async.rollout.shard=2")
    assert status == 1
    assert "did you mean async.rollout.shards" in output
    assert "CLASSES" not in output
    assert "Started a local Ray" not in output


@pytest.mark.nightly
def test_a_run_of_the_bench_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cell.SCENARIOS_BY_NAME, "broken", replace(QUICK, extra=("actor.micro_batch_size=7",)))
    result = BenchCell(scenario="broken", mode="full", repetition=0, warm_up=1, steps=1).run()
    assert "micro_batch_size=7" in result["error"]
