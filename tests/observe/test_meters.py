import pytest

from rlinf_async.observe.meters import BusyMeter, Shares, Spread, StepReport
from rlinf_async.observe.summary import Diagnosis


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def worked(meter, clock, *, seconds, server=0):
    with meter.busy(server):
        clock.now += seconds


def test_busy_is_the_share_of_time_spent_inside():
    clock = Clock()
    meter = BusyMeter(now=clock)
    worked(meter, clock, seconds=1.0)
    clock.now += 3.0
    assert meter.pop() == [0.25]


def test_every_reading_starts_anew():
    clock = Clock()
    meter = BusyMeter(now=clock)
    worked(meter, clock, seconds=1.0)
    meter.pop()
    clock.now += 1.0
    assert meter.pop() == [0.0]


def test_a_block_that_is_still_open_counts_up_to_the_reading_and_from_it():
    clock = Clock()
    meter = BusyMeter(now=clock)
    clock.now = 1.0
    with meter.busy():
        clock.now = 2.0
        assert meter.pop() == [0.5]
        clock.now = 3.0
    clock.now = 4.0
    assert meter.pop() == [0.5]


def test_every_server_has_a_share_of_its_own():
    clock = Clock()
    meter = BusyMeter(width=2, now=clock)
    with meter.busy(0), meter.busy(1):
        clock.now = 1.0
    worked(meter, clock, seconds=1.0, server=1)
    assert meter.pop() == [0.5, 1.0]


def test_a_block_that_fails_was_still_busy():
    clock = Clock()
    meter = BusyMeter(now=clock)

    def fail():
        with meter.busy():
            clock.now = 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock.now = 2.0
    assert meter.pop() == [0.5]


def test_a_reading_after_no_time_is_zero():
    assert BusyMeter(now=Clock()).pop() == [0.0]


def spread(*values):
    made = Spread()
    for value in values:
        made.add(value)
    return made


def test_a_spread_knows_extremes_and_the_weighted_mean():
    made = Spread()
    made.add(1.0, weight=3)
    made.add(5.0)
    assert (made.low, made.mean, made.high) == (1.0, 2.0, 5.0)


def test_merged_spreads_are_the_spread_of_all_values():
    left, right = spread(1.0, 2.0), spread(6.0)
    left.merge(right)
    assert left == spread(1.0, 2.0, 6.0)


def test_merging_an_empty_spread_changes_nothing():
    made = spread(1.0, 2.0)
    made.merge(Spread())
    assert made == spread(1.0, 2.0)


def test_an_empty_spread_reports_nothing():
    assert Spread().as_metrics("staleness") == {}
    assert spread(2.0).as_metrics("x") == {"x/min": 2.0, "x/mean": 2.0, "x/max": 2.0}


def report(**changes):
    given = {
        "step": 1,
        "total": 2,
        "seconds": 4.0,
        "env_steps": 100,
        "episode_return": None,
        "success": None,
        "busy": {"env": Shares(0.5, 0.9), "learner": Shares(0.6, 0.6)},
        "staleness": spread(0.0, 1.0),
        "batch_size": Spread(),
        "batch_wait": Spread(),
    }
    return StepReport(**given | changes)


def test_a_step_reports_its_throughput_in_trained_environment_steps():
    metrics = report().as_metrics()
    assert metrics["async/env_steps_per_second"] == 25.0
    assert (metrics["async/busy/env"], metrics["async/busiest/env"]) == (0.5, 0.9)
    assert metrics["async/staleness/mean"] == 0.5
    assert not any(name.startswith("async/batch") for name in metrics)


def test_a_step_is_bound_by_its_busiest_process():
    assert Diagnosis.of(report().busiest) == Diagnosis("env", 0.9)
    assert Diagnosis.of(report(publication=0.95).busiest).part == "publication"


def test_a_step_that_took_no_time_has_no_throughput():
    assert report(seconds=0.0).env_steps_per_second == 0.0


def test_shares_are_a_mean_and_a_maximum():
    assert Shares.of([0.25, 0.75]) == Shares(0.5, 0.75)
    assert Shares.of([]) == Shares(0.0, 0.0)


def test_every_metric_of_a_step_has_a_name_of_its_own():
    spreads = []
    for number in range(3):
        spreads.append(Spread())
        spreads[-1].add(float(number))
    step = StepReport(
        step=1,
        total=2,
        seconds=4.0,
        env_steps=8,
        episode_return=None,
        success=None,
        busy={"env": Shares(0.25, 0.5)},
        staleness=spreads[0],
        batch_size=spreads[1],
        batch_wait=spreads[2],
    )
    names = ("staleness", "batch/size", "batch/wait_s")
    expected = {f"async/{n}/{end}": float(i) for i, n in enumerate(names) for end in ("min", "mean", "max")}
    assert step.as_metrics() == expected | {
        "async/busy/env": 0.25,
        "async/busiest/env": 0.5,
        "async/env_steps": 8.0,
        "async/env_steps_per_second": 2.0,
        "async/step_seconds": 4.0,
    }


def test_blocks_of_one_reading_add_up():
    clock = Clock()
    meter = BusyMeter(now=clock)
    worked(meter, clock, seconds=0.25)
    with meter.busy():
        clock.now += 0.25
        assert meter.pop() == [1.0]
    clock.now += 0.5
    worked(meter, clock, seconds=0.25)
    assert meter.pop() == [pytest.approx(0.25 / 0.75)]


def test_a_short_reading_is_a_reading():
    clock = Clock()
    meter = BusyMeter(now=clock)
    worked(meter, clock, seconds=0.125)
    clock.now += 0.125
    assert meter.pop() == [0.5]
    assert meter.pop() == [0.0]
