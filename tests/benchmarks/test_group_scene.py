"""The experiment on scenes of a group: nobody looks before its end, and each of its verdicts can come out."""

import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")
pytest.importorskip("rlinf", reason="RLinf is not installed")

from benchmarks.learning import group_scene
from benchmarks.learning.group_scene import (
    ARMS,
    BATCH_COUNT,
    FIRST_BATCHES,
    OVERRIDES,
    SEEDS,
    missing,
    verdict,
)
from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.async_block import read_block


def rows(shared, *, apart=0.1, spread=0.001):
    """Rows of all planned runs in which the arms learn so much, by seed a little more or less."""
    found = []
    for seed, arm in missing([]):
        sign = 1 if arm == "shared" else -1
        gain = (apart if arm == "apart" else shared) + sign * spread * (seed % 3 - 1)
        returns = [-1.0] * FIRST_BATCHES + [-1.0 + gain] * (BATCH_COUNT - FIRST_BATCHES)
        found.append({"arm": arm, "seed": seed, "returns": returns, "seconds": 1.0})
    return found


def test_no_run_of_the_plan_has_been_made():
    assert not group_scene.RESULTS_FILE.exists()


def test_nothing_is_computed_before_the_last_run():
    every = rows(0.1)
    assert len(every) == len(SEEDS) * len(ARMS) == 20
    assert verdict(every[:-1]) == "19 of 20 runs: no result yet"
    assert list(missing(every[:-1])) == [(every[-1]["seed"], every[-1]["arm"])]


@pytest.mark.parametrize(
    ("shared", "spread", "word"),
    [
        (0.1, 0.001, "equivalent"),
        (0.2, 0.001, "better"),
        (0.05, 0.001, "worse"),
        (0.09, 0.02, "open"),
    ],
)
def test_each_verdict_is_that_of_the_plan(shared, spread, word):
    assert verdict(rows(shared, spread=spread)).startswith(f"{word}: ")


def test_without_learning_there_is_no_result():
    assert verdict(rows(0.1, apart=0.0)).startswith("no result: `apart` has not learned")


@pytest.mark.parametrize(("arm", "flag"), ARMS.items())
def test_arms_differ_in_the_scene_alone(arm, flag):
    overrides = [*OVERRIDES, f"async.advanced.shared_group_scene={flag}"]
    cfg = compose_config("libero_object_ppo_vla", overrides)
    advanced = AsyncConfig.from_mapping(read_block(cfg)).advanced
    assert advanced.shared_group_scene == (arm == "shared")
    assert cfg.env.train.group_size == cfg.algorithm.group_size == 4
    assert cfg.env.train.task_suite_name == "libero_goal"
