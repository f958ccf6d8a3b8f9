import gc
import io
import weakref
from dataclasses import replace

import pytest
from rich.console import Console

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.events import PUBLICATION_METRIC, StepReport
from rlinf_async.observe.load import Load
from rlinf_async.observe.meters import Shares
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog
from rlinf_async.observe.state import RunState
from tests.making import spread, step_report


def report(step: int, *, success: float | None, seconds: float = 1.0, env: float = 0.5) -> StepReport:
    busy = {"env": env, "inference": 0.0, "learner": 1.0}
    return step_report(step, success=success, seconds=seconds, busy=busy)


def shown(state: RunState) -> str:
    console = Console(file=io.StringIO(), width=120)
    RunDisplay(console).summary(state, "somewhere")
    return console.file.getvalue()


def test_shares_and_rates_are_weighted_by_time():
    state = RunState.of(
        [report(1, success=0.0, seconds=1.0, env=1.0), report(2, success=1.0, seconds=3.0, env=0.0)]
    )
    assert state.whole.busy == {"env": 0.25, "inference": 0.0, "learner": 1.0}
    assert state.whole.env_steps_per_second == 5.0


def test_what_bounds_a_run_is_weighted_by_time_and_leaves_the_first_step_out():
    reports = [report(1, success=None, env=0.0), report(2, success=None, seconds=3.0, env=1.0)]
    idle = [replace(one, busy={**one.busy, "learner": Shares(0.5, 0.5)}) for one in reports]
    state = RunState.of(idle)
    assert (state.bound.part, state.bound.share) == ("env", 1.0)
    assert "Environments bound this run: the busiest shard works 100% of the time." in shown(state)
    assert RunState.of([]).bound is None


@pytest.mark.parametrize(
    ("steps", "success", "said"),
    [
        (3, (0.2, 0.2), "20% -> 20%  (means of the first and last 3 steps)"),
        (6, (0.25, 0.45), "(means of the first and last 4 steps)"),
        (8, (0.25, 0.65), "25% -> 65%  (means of the first and last 4 steps)"),
    ],
)
def test_success_is_a_mean_of_the_first_and_the_last_four_steps_or_of_all(steps, success, said):
    reports = [report(step, success=step / 10) for step in range(1, steps + 1)]
    state = RunState.of(reports)
    assert state.success.means == pytest.approx(success)
    assert said in shown(state)


def test_an_environment_without_success_is_not_given_one():
    state = RunState.of([report(1, success=None)])
    assert state.summary()["success"] is None
    assert "not reported" in shown(state)


def test_a_summary_is_plain_data():
    spreads = {"staleness": spread(1.0), "batch_size": spread(8.0)}
    reports = [replace(report(step, success=step / 4, seconds=2.0), **spreads) for step in (1, 2)]
    ledger = Ledger(produced=9, trained=5)
    ledger.refused["stale"] = 3
    ends = {"min": 1.0, "mean": 1.0, "max": 1.0}
    state = RunState.of(reports)
    state.ledger = ledger
    assert state.summary() == {
        "steps": 2,
        "seconds": 4.0,
        "env_steps": 20,
        "env_steps_per_second": 5.0,
        "busy": {"env": 0.5, "inference": 0.0, "learner": 1.0},
        "bound": {"part": "learner", "share": 1.0},
        "staleness": ends,
        "batch_size": dict.fromkeys(ends, 8.0),
        "success": {"first": 0.375, "last": 0.375},
        "trajectories": {"produced": 9, "trained": 5, "in_flight": 1, "refused": {"stale": 3}},
        "faults": {"kinds": {}, "restarts": {}, "seconds": 0.0},
    }
    assert RunState.of([]).summary()["bound"] is None


def test_the_state_of_a_run_keeps_no_step():
    state, seen = RunState(), []
    for step in range(1, 9):
        one = report(step, success=0.5)
        seen.append(weakref.ref(one))
        state.add(one)
    del one
    gc.collect()
    assert [ref() is not None for ref in seen] == [False] * 8
    assert state.whole.steps == 8


def test_a_reader_of_metrics_folds_them_to_the_state_that_the_driver_has(tmp_path):
    load = Load(own=1.5, others=0.25, cores=4)
    reports = [
        replace(
            report(step, success=step / 8, seconds=2.0 + step, env=0.1 * step), load=load, publication=0.25
        )
        for step in range(1, 8)
    ]
    records, driver = RunDir(tmp_path), RunState.of(reports, on_cpu=True)
    log = RunLog(records)
    for one in reports:
        publication = {PUBLICATION_METRIC: one.publication * one.seconds, "env/success_once": one.success}
        log.step(one, publication)
    records.begin({}, title="", versions={"torch": "2.7.0+cpu"})
    reader = RunReader(tmp_path).state()
    assert reader.bound.sentence() == driver.bound.sentence()
    assert reader.bound.load.own == pytest.approx(1.5)
    assert reader.regular.busiest == pytest.approx(driver.regular.busiest)
    assert (reader.success.means, reader.pace.step_s) == (driver.success.means, driver.pace.step_s)
    assert reader.pace.env_steps_per_second == driver.pace.env_steps_per_second == 60 / sum(range(4, 10))
    assert reader.whole.busy == pytest.approx(driver.whole.busy)
