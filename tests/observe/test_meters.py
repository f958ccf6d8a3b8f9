from dataclasses import replace

import pytest

from rlinf_async.observe.meters import BusyMeter, Shares, Spread
from rlinf_async.observe.state import Diagnosis
from tests.making import Clock, spread, step_report


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return BusyMeter(now=clock)


def worked(meter, clock, *, seconds, server=0):
    with meter.busy(server):
        clock.now += seconds


def test_a_reading_is_the_share_of_time_spent_inside_and_the_next_starts_anew(meter, clock):
    assert meter.pop() == [0.0]
    worked(meter, clock, seconds=0.125)  # a short reading is a reading
    clock.now += 0.375
    assert meter.pop() == [0.25]
    assert meter.pop() == [0.0]
    clock.now += 1.0
    assert meter.pop() == [0.0]


def test_a_block_that_is_still_open_counts_up_to_the_reading_and_from_it(meter, clock):
    clock.now = 1.0
    with meter.busy():
        clock.now = 2.0
        assert meter.pop() == [0.5]
        clock.now = 3.0
    clock.now = 4.0
    assert meter.pop() == [0.5]


def test_blocks_of_one_reading_add_up(meter, clock):
    worked(meter, clock, seconds=0.25)
    with meter.busy():
        clock.now += 0.25
        assert meter.pop() == [1.0]
    clock.now += 0.5
    worked(meter, clock, seconds=0.25)
    assert meter.pop() == [pytest.approx(0.25 / 0.75)]


def test_every_server_has_a_share_of_its_own(clock):
    meter = BusyMeter(width=2, now=clock)
    with meter.busy(0), meter.busy(1):
        clock.now = 1.0
    worked(meter, clock, seconds=1.0, server=1)
    assert meter.pop() == [0.5, 1.0]


def test_a_block_that_fails_was_still_busy(meter, clock):
    def fail():
        clock.now = 1.0
        raise KeyError

    with pytest.raises(KeyError), meter.busy():
        fail()
    clock.now = 2.0
    assert meter.pop() == [0.5]


def test_a_spread_knows_extremes_and_the_weighted_mean():
    made = Spread()
    made.add(1.0, weight=3)
    made.add(5.0)
    assert (made.low, made.mean, made.high) == (1.0, 2.0, 5.0)


@pytest.mark.parametrize("values", [(), (6.0,)])
def test_merged_spreads_are_the_spread_of_all_values(values):
    made = spread(1.0, 2.0)
    made.merge(spread(*values))
    assert made == spread(1.0, 2.0, *values)


def test_an_empty_spread_reports_nothing():
    assert Spread().as_metrics("staleness") == {}
    assert spread(2.0).as_metrics("x") == {"x/min": 2.0, "x/mean": 2.0, "x/max": 2.0}


def test_a_step_is_bound_by_its_busiest_process():
    busy = {"env": Shares(0.5, 0.9), "learner": Shares(0.6, 0.6)}
    for publication, bound in ((0.0, Diagnosis("env", 0.9)), (0.95, Diagnosis("publication", 0.95))):
        report = replace(step_report(), busy=busy, publication=publication)
        assert Diagnosis.of(report.busiest) == bound


def test_a_step_that_took_no_time_has_no_throughput():
    assert step_report(seconds=0.0).env_steps_per_second == 0.0


def test_shares_are_a_mean_and_a_maximum():
    assert Shares.of([0.25, 0.75]) == Shares(0.5, 0.75)
    assert Shares.of([]) == Shares(0.0, 0.0)


def test_every_metric_of_a_step_has_a_name_of_its_own():
    spreads = {"staleness": spread(0.0), "batch_size": spread(1.0), "batch_wait": spread(2.0)}
    step = replace(step_report(seconds=4.0, env_steps=8, **spreads), busy={"env": Shares(0.25, 0.5)})
    names = ("staleness", "batch/size", "batch/wait_s")
    expected = {f"async/{n}/{end}": float(i) for i, n in enumerate(names) for end in ("min", "mean", "max")}
    assert step.as_metrics() == expected | {
        "async/busy/env": 0.25,
        "async/busiest/env": 0.5,
        "async/env_steps": 8.0,
        "async/env_steps_per_second": 2.0,
        "async/step_seconds": 4.0,
    }


def test_the_mean_since_an_earlier_spread_counts_later_numbers_alone():
    now = Spread()
    now.add(1.0)
    earlier = replace(now)
    now.add(5.0)
    now.add(7.0)
    assert now.mean_since(earlier) == 6.0
    # As after the death of a process that held some.
    assert Spread(1.0, 3.0).mean_since(now) == 3.0
    assert Spread(4.0, 2.0).mean_since(now) == 0.5
    assert Spread().mean_since(Spread()) == 0.0
