"""What is decided after a step, brought to the processes that it concerns."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.config import AsyncConfig
from rlinf_async.loops import adapting
from rlinf_async.loops.learner import WAITING
from rlinf_async.observe.meters import Shares, Spread, StepReport
from rlinf_async.observe.spans import UNRECORDED
from rlinf_async.ray_runtime.adapting import Adapter
from tests.making import run_settings
from tests.scripted import scripted

TWO = {"max_staleness": 2, "max_batch_size": 1, "max_wait_s": 0.5}


class Fleet:
    def __init__(self):
        self.calls = []

    def run(self, group, method, *arguments):
        self.calls.append((group, method, *arguments))
        return [[0.25, 0.5]]


def report(step, **changes):
    busy = {name: Shares.of([0.5]) for name in ("env", "inference", "learner")}
    size = Spread()
    size.add(2.0)
    fields = {"seconds": 2.0, "env_steps": 8, "restarts": {"env": 0}, **changes}
    return StepReport(
        step=step,
        total=9,
        episode_return=None,
        success=None,
        busy=busy,
        staleness=Spread(),
        batch_size=size,
        batch_wait=Spread(),
        **fields,
    )


def trained(**evaluation):
    return SimpleNamespace(learners=[{WAITING: 0.5}, {WAITING: 1.0}], evaluation=evaluation)


@pytest.fixture
def begun(monkeypatch):
    """An adapter whose second step changes the limits, its fleet, and what it has measured."""

    def begin(**block):
        script, fleet = scripted({2: TWO}), Fleet()
        monkeypatch.setattr(adapting, "Adaptation", script)
        block = {"mode": "full", "train": {"max_staleness": 2}, **block}
        settings = run_settings(asynchrony=AsyncConfig.from_mapping(block), batches=9)
        return Adapter(fleet, settings, say=lambda text: None), fleet, script.seen

    return begin


def test_new_limits_reach_the_gate_and_the_request_channel(begun):
    adapter, fleet, seen = begun(adapt=True)
    for step in (1, 2):
        adapter.after(trained(), report(step), UNRECORDED)
    asked = ("coordinator", "pop_held_back")
    assert fleet.calls == [
        asked,
        asked,
        ("coordinator", "limit_staleness", 2),
        ("requests", "limit_batches", 1, 0.5),
    ]
    assert adapter.as_metrics()["async/adapt/max_wait_ms"] == 500
    # The rank that waited longest has kept the others waiting.
    assert [(one.learner_waits, one.held_back, one.forward_s) for one in seen] == [
        (0.5, (0.25, 0.5), 1.0)
    ] * 2


def test_a_step_with_an_evaluation_a_checkpoint_or_a_restart_is_not_compared(begun):
    adapter, fleet, seen = begun(adapt=True)
    adapter.after(trained(**{"eval/success_once": 1.0}), report(1), UNRECORDED)
    adapter.after(trained(**{"async/save_failures": 0.0}), report(2), UNRECORDED)
    adapter.after(trained(), report(3, restarts={"env": 1}), UNRECORDED)
    assert seen == []
    # What shards waited in them is asked for all the same: it must not count for the next step.
    assert len(fleet.calls) == 3


def test_without_adapt_no_process_is_asked_anything(begun):
    adapter, fleet, _ = begun()
    adapter.after(trained(), report(1), UNRECORDED)
    assert fleet.calls == []
    assert adapter.as_metrics() == {}
    assert adapter.closing("runs/one") is None


def test_the_end_of_a_run_says_who_knows_what_takes_a_restart(begun):
    assert "rlinf-async plan runs/one" in begun(adapt=True)[0].closing("runs/one")
    assert begun(adapt=True, trace=False)[0].closing("runs/one") is None  # there is nothing to plan from


def test_what_a_checkpoint_knows_reaches_gate_and_request_channel_before_a_run_goes_on():
    settings = run_settings(
        asynchrony=AsyncConfig.from_mapping({"mode": "full", "adapt": True, "train": {"max_staleness": 2}})
    )
    fleet, said = Fleet(), []
    known = Adapter(fleet, settings, say=said.append).known()
    resumed = Adapter(fleet, settings, say=said.append)
    resumed.resume({**known, "limits": TWO})
    assert fleet.calls == [("coordinator", "limit_staleness", 2), ("requests", "limit_batches", 1, 0.5)]
    assert said == ["async.adapt: goes on with max_staleness 2, max_batch_size 1, max_wait_ms 500"]
    assert resumed.known()["limits"] == TWO


def test_limits_of_another_config_and_a_checkpoint_without_any_change_nothing():
    block = {"mode": "full", "adapt": True, "train": {"max_staleness": 3}}
    settings = run_settings(asynchrony=AsyncConfig.from_mapping(block))
    fleet, said = Fleet(), []
    adapter = Adapter(fleet, settings, say=said.append)
    adapter.resume(None)
    assert said == []
    adapter.resume({**adapter.known(), "given": [TWO, TWO], "limits": TWO})
    assert said == ["async.adapt: begins anew, as the config allows something else than before"]
    assert fleet.calls == []


def test_a_run_without_adapt_neither_saves_nor_takes_over_limits(begun):
    adapter, fleet, _ = begun()
    assert adapter.known() is None
    adapter.resume({"limits": TWO})
    assert fleet.calls == []
