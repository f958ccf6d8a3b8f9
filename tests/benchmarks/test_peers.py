"""RLinf's asynchronous PPO as the comparison reads it."""

import json
from pathlib import Path

import pytest

from benchmarks.learning import cells, peers
from benchmarks.learning.peers import AREA_MEASURES, PeerCurve
from benchmarks.learning.preregistration import load

MEASUREMENTS = Path(__file__).parents[2] / "benchmarks" / "learning" / "measurements.md"


def scalars(returns, success):
    """What RLinf's runner logs: `returns` of the batch of every step, `success` where episodes had ended."""
    return {
        "time/step": {step: 0.5 for step in range(1, len(returns) + 1)},
        "rollout/returns_mean": dict(enumerate(returns, 1)),
        "rollout/data_staleness_1/ratio": {step: step / 10 for step in range(1, len(returns) + 1)},
        "env/success_once": success,
    }


def test_a_batch_that_is_trained_again_is_not_fresh():
    curve = peers.read_async_ppo(scalars([1.0, 1.0, 2.0, 2.0, 3.0], {1: 0.25, 3: 0.5, 5: 1.0}))
    assert curve.fresh == [True, False, True, False, True]
    assert curve.success == [0.25, 0.25, 0.5, 0.5, 1.0]
    assert curve.seconds == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert curve.fresh_share == pytest.approx(0.6)


def test_episodes_that_have_not_ended_have_not_succeeded():
    assert peers.read_async_ppo(scalars([1.0, 2.0], {2: 0.5})).success == [0.0, 0.5]


def test_areas_are_over_as_many_fresh_batches_and_as_many_of_all():
    curve = PeerCurve(success=[0.1, 0.2, 0.4, 0.8], seconds=[1, 2, 3, 4], fresh=[True, False, True, True])
    assert curve.areas(2) == pytest.approx({AREA_MEASURES[0]: 0.25, AREA_MEASURES[1]: 0.15})


def test_the_level_is_reached_by_four_fresh_batches_together():
    fresh = [True, False, True, True, True, True]
    curve = PeerCurve(success=[0.6, 1.0, 0.8, 0.8, 0.8, 0.8], seconds=[1, 2, 3, 4, 5, 6], fresh=fresh)
    assert curve.seconds_to(0.8) == 6
    assert curve.seconds_to(0.9) is None


def test_only_seeds_with_all_three_runs_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "RESULTS_FOLDER", tmp_path)
    stated = load()
    setting = peers.runs(stated)[0].setting
    for side, level in (("synchronous", 0.5), ("asynchronous", 0.7)):
        path = setting.path(side, 0)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"success": [level] * 30, "seconds": [2.0] * 30}))
    assert peers.table(stated) == "No results yet.\n"
    for one in peers.runs(stated)[:2]:
        curve = PeerCurve(success=[0.6] * 60, seconds=[float(n) for n in range(60)], fresh=[True, False] * 30)
        cells.store(one.path, vars(curve))
    rows = json.loads(peers.write(stated).read_text())["rows"]
    assert [row["seeds"] for row in rows.values()] == [[0]] * 3
    assert rows["asynchronous"]["area over fresh env steps"] == [0.7]
    assert rows["async-ppo"]["fresh_share"] == [0.5]
    assert "+0.100" in peers.table(stated)


def test_what_is_published_is_what_the_results_give():
    published = json.loads((cells.RESULTS_FOLDER / "peers.json").read_text())["rows"]
    given = {label: peers._row(load(), by_seed) for label, by_seed in peers.curves(load()).items()}
    assert published == given, "run `peers --report`"
    assert peers.table(load()) in MEASUREMENTS.read_text(), "run `peers --report`"
    more = peers._differences(given).partition("fresh env steps ")[2].partition(";")[0]
    assert f"of the area {more}" in " ".join(MEASUREMENTS.read_text().split())


def test_a_run_differs_from_the_synchronous_one_in_what_makes_it_asynchronous(tmp_path):
    one = peers.runs(load())[0]
    config, *overrides = one._arguments(tmp_path)
    assert config == "metaworld_ppo_mlp"
    assert "algorithm.loss_type=decoupled_actor_critic" in overrides
    assert overrides[-1] == "runner.max_epochs=60"
    assert "algorithm.update_epoch=1" in overrides
