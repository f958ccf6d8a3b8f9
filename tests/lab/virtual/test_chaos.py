"""Thousands of planned runs: whatever lasts how long, and whoever is first, the rules of a run hold."""

import os
import random
from dataclasses import replace

import pytest

from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.times import DurationDraws, WayTimes, WeightTimes
from tests.lab.virtual.given import settings, times

RUNS = int(os.environ.get("SCHEDULES", "300"))
"""How many are tried; more with SCHEDULES=4000."""


def drawn(seed):
    """Settings, service times and the order of what happens at once."""
    rng = random.Random(seed)
    draw = rng.choice
    level = {name: {"enabled": rng.random() < 0.6} for name in ("train", "rollout", "streamer")}
    balance = draw(("exact", "exact", "tasks"))
    level["train"] |= {"max_staleness": draw((1, 1, 2, 3))}
    level["advanced"] = {"proximal": draw(("recomputed", "recomputed", "loglinear")), "balance": balance}
    block = level
    while True:
        try:
            run = settings(
                block,
                horizon=draw((1, 2, 4)),
                batches=draw((3, 5)),
                update_epoch=draw((1, 1, 2)),
                normalizes=rng.random() < 0.6,
                micro_batch_size=draw((1, 2, 4)),
                env_workers=draw((1, 2)),
                inference_ranks=draw((1, 2, 3)),
                learner_ranks=draw((1, 1, 2)),
                shards_per_worker=draw((1, 2, 4)),
                rollout_epochs=draw((1, 1, 2)),
            )
        except ValueError:
            continue  # sizes that do not divide
        break
    seconds = [draw((0.0, 0.01, 0.1, 1.0, 5.0)) for _ in range(12)]
    lasting = times(
        decision=DurationDraws(mean=seconds[0], cv=draw((0.0, 0.3, 2.0))),
        reset=seconds[1],
        tasks=draw(((1.0,), (0.5, 1.5), (0.1, 0.1, 5.0))),
        forward=seconds[2] / 4,
        sample=seconds[3] / 8,
        score=draw((0.0, 0.3)),
        vectorised=rng.random() < 0.2,
        cores=draw((0, 0, 2)),
        seed=seed,
        training={"batch_s": seconds[4], "optimizer_step_s": seconds[5] / 4},
        way=WayTimes(request_s=seconds[6] / 4, worker_s=seconds[7] / 8, put_s=seconds[8]),
        weights=WeightTimes(copy_s=seconds[9] / 4, send_s=3 * seconds[10], load_s=seconds[11]),
    )
    return run, lasting, draw((None, seed))


@pytest.mark.parametrize("part", range(4))
def test_whatever_lasts_how_long_every_trajectory_is_trained_once_within_the_bound(part):
    lags, scored = set(), 0
    for seed in range(part, RUNS, 4):
        run, lasting, order = drawn(seed)
        scored += run.scored_by_inference
        try:
            planned = predict(run, lasting, order=order)
        except BaseException as error:
            error.add_note(f"with seed {seed}: {run}")
            raise
        trajectories = run.plan.trajectories_per_batch * run.batches
        assert planned.ledger.trained == planned.ledger.produced == trajectories, seed
        assert (planned.ledger.refused.total(), planned.ledger.in_flight) == (0, 0), seed
        assert len(planned.reports) == len(planned.trained_at) == run.batches, seed
        highest = max(report.staleness.high for report in planned.reports)
        assert highest <= run.asynchrony.max_staleness, seed
        lags.add(highest)
    assert {0, 1} <= lags
    assert scored


def test_the_same_order_gives_the_same_run_and_another_order_another():
    """All environments ask at once, and are answered one by one: the slow ones first, or last."""

    def ends(order):
        run = settings({"mode": "full"}, shards_per_worker=8, micro_batch_size=4)
        one_by_one = replace(run, max_batch_size=1)
        return predict(one_by_one, times(tasks=(1.0, 1.0, 1.0, 4.0)), order=order).trained_at

    assert ends(1) == ends(1)
    assert ends(None) == ends(None)
    assert len({ends(order) for order in range(5)}) > 1
