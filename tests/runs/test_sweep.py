"""A sweep of real runs: RLinf's own runner beside all three levels, measured by the same yardstick."""

import csv
import json

import pytest

from tests.runs.conftest import COMMAND, Runner

pytestmark = pytest.mark.ray

TINY = (
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=40",
    "env.train.service.decision_s=0.02",
    "algorithm.update_epoch=1",
    "actor.micro_batch_size=8",
    "actor.global_batch_size=16",
    "actor.model.service.weights_mb=1",
    "runner.max_epochs=3",
)
"""Eight environments that take four decisions of ten steps each: 320 environment steps a step."""


def sweep(runs: Runner) -> tuple[int, str]:
    process = runs.start(
        *(*COMMAND, "sweep", "-n", "bench/emulated", "--modes", "off,full", "--output", "sweep"), *TINY
    )
    output, _ = process.communicate(timeout=500)
    return process.returncode, output


@pytest.mark.nightly
def test_rlinfs_own_runner_and_all_levels_are_measured_side_by_side(runs: Runner) -> None:
    status, output = sweep(runs)
    assert status == 0, output
    home = runs.directory / "sweep"
    rows = {row["setting"]: row for row in csv.DictReader((home / "table.csv").read_text().splitlines())}
    assert list(rows) == ["off", "full"]
    for row in rows.values():
        seconds, rate = float(row["step_s"]), float(row["env_steps_per_s"])
        assert 0 < float(row["learner_s"]) < seconds
        assert rate == pytest.approx(320 / seconds)
        assert 0 < float(row["rollout_s"]) < seconds
    assert float(rows["off"]["rollout_s"]) > 4 * 0.02 * 0.9
    assert "| off |" in (home / "table.md").read_text()
    of_mode = {
        mode: [
            json.loads(line) for line in (home / f"{mode}-seed0" / "metrics.jsonl").read_text().splitlines()
        ]
        for mode in ("off", "full")
    }
    for lines in of_mode.values():
        assert [line["async/env_steps"] for line in lines] == [320.0] * 3
    # Twelve decisions; some are taken before the first step's window begins, or ahead of their own step.
    full = of_mode["full"]
    worked = sum(line["async/busiest/env"] * line["async/step_seconds"] for line in full)
    assert 6 * 0.02 < worked < sum(line["async/step_seconds"] for line in full)

    status, output = sweep(runs)
    assert status == 0, output
    assert "2 runs, one after the other, 2 of them are done" in output
