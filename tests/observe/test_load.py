"""What a run and other work keep busy of a machine."""

import multiprocessing
import os
from dataclasses import asdict

import pytest

from rlinf_async.observe.load import Load, LoadMeter, cpu_seconds, torch_is_for_cpu


def meter(*usages):
    """A meter that is read at seconds 0, 10, 20, ..."""
    seconds, read = iter(range(0, 100, 10)), iter(usages)
    return LoadMeter(lambda: next(read), lambda: float(next(seconds)), cores=4)


def test_busy_cores_are_those_of_the_run_and_the_rest_since_the_last_look():
    found = meter((100.0, 40.0), (125.0, 55.0), (130.0, 55.0))
    assert found.pop() == Load(own=1.5, others=1.0, cores=4)
    assert found.pop() == Load(own=0.0, others=0.5, cores=4)


@pytest.mark.parametrize("usages", [[(1.0, None), (9.0, None)], [(1.0, 2.0), (9.0, None)]])
def test_what_is_unknown_is_not_guessed(usages):
    assert meter(*usages).pop() is None


@pytest.mark.parametrize(
    ("usages", "own", "others"),
    [
        # A process that has ended takes its seconds with it, and clocks of both sides differ by a tick.
        ([(5.0, 4.0), (6.0, 1.0)], 0.0, 0.1),
        ([(5.0, 4.0), (6.0, 5.5)], 0.15, 0.0),
    ],
)
def test_no_load_is_negative(usages, own, others):
    assert asdict(meter(*usages).pop()) == pytest.approx({"own": own, "others": others, "cores": 4})


def test_the_load_of_a_step_is_read_back_from_its_metrics():
    load = Load(own=1.5, others=0.25, cores=2.0)
    assert Load.from_metrics(load.as_metrics()) == load
    assert Load.from_metrics({"async/load/own_cores": 1.0}) is None
    assert not load.is_full
    assert Load(own=1.5, others=0.3, cores=2.0).is_full


def burn(until):
    while sum(os.times()[:2]) < until:
        pass


def test_a_child_that_has_ended_was_the_runs_own():
    busy, own = cpu_seconds()
    child = multiprocessing.get_context("spawn").Process(target=burn, args=(0.5,))
    child.start()
    child.join(60)
    busy_after, own_after = cpu_seconds()
    assert own_after - own >= 0.45
    assert busy_after - busy >= 0.45


def test_a_torch_for_the_cpu_is_known_by_its_version():
    assert torch_is_for_cpu("2.13.0+cpu")
    assert not torch_is_for_cpu("2.13.0+cu130")
    assert not torch_is_for_cpu("2.13.0")
