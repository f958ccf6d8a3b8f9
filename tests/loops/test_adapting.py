"""What a run that follows its measurements measures, what it says of its changes, and what it keeps."""

import json

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.core.adaptation import LEAST, SETTLING
from rlinf_async.core.guesses import Limits
from rlinf_async.loops import adapting
from rlinf_async.loops.adapting import Adapting
from rlinf_async.observe.meters import Shares, Spread, StepReport
from rlinf_async.observe.spans import UNRECORDED, SpanLog, read_spans
from tests.making import plan, run_settings
from tests.scripted import scripted

TOLD = SETTLING + LEAST
"""Steps after which a change is tried, and those after which a trial of steady steps is decided."""


def settings(*, inference_ranks=2, **block):
    """Two shards of four environments, with rollouts of four decisions, two of them in a global batch."""
    block = {"mode": "full", "adapt": True, "train": {"max_staleness": 2}, **block}
    return run_settings(
        asynchrony=AsyncConfig.from_mapping(block),
        plan=plan(total_envs=8, inference_ranks=inference_ranks, rollout_epochs=2),
        horizon=4,
        max_batch_size=8,
    )


def spread(*values):
    one = Spread()
    for value in values:
        one.add(value)
    return one


def report(step, *, seconds=2.0, env_steps=8, busy=0.5, sizes=(1.0, 2.0, 2.0, 3.0), waits=()):
    return StepReport(
        step=step,
        total=9,
        seconds=seconds,
        env_steps=env_steps,
        episode_return=None,
        success=None,
        busy={"env": Shares.of([1.0]), "inference": Shares.of([busy, busy]), "learner": Shares.of([0.1])},
        staleness=Spread(),
        batch_size=spread(*sizes),
        batch_wait=spread(*waits),
    )


def after(adapts, of, *, waited=0.5, held_back=(0.1, 0.2), spans=UNRECORDED, **how):
    """A quarter of a usual step is waited for, and the shards are held back."""
    return adapts.after(of, waited=waited, held_back=held_back, spans=spans, **how)


def run(adapts, first, steps, **how):
    """What each of `steps` steps changes, all alike but for their number."""
    shape = {name: how.pop(name) for name in ("seconds", "busy", "sizes", "waits") if name in how}
    return [after(adapts, report(first + step, **shape), **how) for step in range(steps)]


def limits(staleness, size=8, wait=0.0):
    return Limits(max_staleness=staleness, max_batch_size=size, max_wait_s=wait)


def test_a_change_that_helps_is_returned_said_recorded_and_counted_and_so_is_that_it_is_kept(tmp_path):
    said, spans = [], SpanLog(tmp_path, process="driver", now=lambda: 3.0)
    adapts = Adapting(settings(), say=said.append)
    assert adapts.as_metrics() == {
        "async/adapt/max_staleness": 1,
        "async/adapt/max_batch_size": 8,
        "async/adapt/max_wait_ms": 0,
        "async/adapt/changes": 0,
    }
    assert run(adapts, 1, TOLD, spans=spans) == [None] * (TOLD - 1) + [limits(2)]
    assert adapts.as_metrics()["async/adapt/max_staleness"] == 2
    assert run(adapts, 1 + TOLD, TOLD, spans=spans, seconds=1.5) == [None] * (TOLD - 1) + [limits(2)]
    assert adapts.as_metrics()["async/adapt/changes"] == 1
    # At most the tenth of the time that every shard is held back is saved: the rest took nine tenths.
    assert said == [
        "step 8: async.adapt: max_staleness 1 -> 2, as the learner waits 25% of the time, and every shard "
        "is held back 10% or more (by a guess +11.1%)",
        "step 16: async.adapt: max_staleness 1 -> 2 is kept: throughput +33.3%, standard error 0.0%",
    ]
    tried, kept = read_spans(tmp_path)
    common = {"kind": "adapt", "process": "driver", "began": 3.0, "ended": 3.0, "knob": "max_staleness"}
    common |= {"before": 1, "after": 2, "guess": 0.111111, "error": 0}
    why = "the learner waits 25% of the time, and every shard is held back 10% or more"
    assert tried == {**common, "verdict": "tried", "step": 8, "because": why}
    assert kept == {**common, "verdict": "kept", "step": 16, "because": why, "gain": 0.333333}


def test_a_change_that_does_not_help_is_taken_back_which_is_a_change_as_well(tmp_path):
    said, spans = [], SpanLog(tmp_path)
    adapts = Adapting(settings(), say=said.append)
    run(adapts, 1, TOLD)
    noisy = [2.4, 2.5, 2.5, 2.5, 2.6]
    steps = [report(TOLD + 1 + step, seconds=s) for step, s in enumerate([9.0] * SETTLING + noisy)]
    assert [after(adapts, one, spans=spans) for one in steps] == [None] * (TOLD - 1) + [limits(1)]
    # 2.0 / 2.5 - 1; the error is that of the five steps: their deviation of 0.0707 by the root of five, of
    # 2.5, which is 0.01265, times the 0.8 of the throughput that are left.
    assert said[1] == (
        "step 16: async.adapt: max_staleness 2 -> 1 again: throughput -20.0%, standard error 1.0%"
    )
    (span,) = read_spans(tmp_path)
    assert (span["verdict"], span["before"], span["after"], span["gain"]) == ("taken back", 2, 1, -0.2)
    assert span["error"] == 0.010119
    assert adapts.as_metrics()["async/adapt/changes"] == 2


def test_a_step_is_measured_in_shares_of_its_time_and_seconds_of_a_pass(monkeypatch):
    script = scripted({})
    monkeypatch.setattr(adapting, "Adaptation", script)
    adapts = Adapting(settings())
    after(adapts, report(1, waits=(0.1, 0.3)))
    after(adapts, report(2, sizes=()), waited=2.5)
    first, second = script.seen
    assert (first.seconds, first.env_steps, first.learner_waits) == (2.0, 8, 0.25)
    assert (first.held_back, first.inference_busy) == ((0.1, 0.2), 0.5)
    assert (first.batch_size, first.batch_wait_s) == (2.0, pytest.approx(0.2))
    assert first.forward_s == 0.5  # two ranks, each busy for one second, have made four passes
    # The learner may have begun to wait before the step, and a step may be without a pass.
    assert (second.learner_waits, second.batch_size, second.forward_s) == (1.0, 0.0, 0.0)


def test_a_step_that_was_disturbed_or_has_trained_nothing_or_took_no_time_is_not_compared():
    adapts = Adapting(settings())
    for step in range(3 * TOLD):
        assert after(adapts, report(step), disturbed=True) is None
        assert after(adapts, report(step, env_steps=0)) is None
        assert after(adapts, report(step, seconds=0.0)) is None
    assert run(adapts, 1, TOLD)[-1] == limits(2)


WAIT = "as requests wait 20% of the time while inference is idle 50% of it (by a guess +25.0%)"


def test_a_wait_of_the_users_is_what_a_run_begins_with_and_by_which_eight_decisions_are_delayed():
    said = []
    adapts = Adapting(settings(rollout={"max_wait_ms": 20}, train={"max_staleness": 1}), say=said.append)
    assert adapts.as_metrics()["async/adapt/max_wait_ms"] == pytest.approx(20)
    assert run(adapts, 1, TOLD, waits=(0.05,))[-1] == limits(1, wait=0.0)
    assert said == [f"step 8: async.adapt: max_wait_s 0.02 -> 0, {WAIT}"]


def test_requests_wait_for_half_a_pass_at_first_and_no_longer_than_the_user_says():
    """A pass takes 0.495 s: two ranks, each busy for 1.98 s, have made eight."""
    for given, wait in (("auto", 0.2475), (20, None)):
        adapts = Adapting(settings(rollout={"max_wait_ms": given}, train={"max_staleness": 1}))
        changed = run(adapts, 1, TOLD, busy=0.99, sizes=(1.0,) * 8, waits=(0.1,))[-1]
        assert changed == (wait and limits(1, wait=pytest.approx(wait)))


def test_without_level_2_only_the_bound_changes_and_is_told_of():
    adapts = Adapting(settings(rollout={"enabled": False, "max_wait_ms": 20}))
    assert set(adapts.as_metrics()) == {"async/adapt/max_staleness", "async/adapt/changes"}
    crowded = {"held_back": (0.0, 0.3), "sizes": (8.0,), "waits": (0.05,)}
    assert run(adapts, 1, 3 * TOLD, **crowded) == [None] * 3 * TOLD


def test_without_adapt_nothing_is_decided_told_or_kept():
    said = []
    adapts = Adapting(settings(adapt=False), say=said.append)
    assert run(adapts, 1, 3 * TOLD) == [None] * 3 * TOLD
    assert (adapts.as_metrics(), adapts.known(), adapts.closing("runs/one")) == ({}, None, None)
    assert adapts.resume(Adapting(settings()).known()) is None
    assert said == []


def test_a_run_that_goes_on_begins_with_the_limits_of_the_one_before_and_says_so():
    before, said = Adapting(settings()), []
    run(before, 1, TOLD)
    run(before, 1 + TOLD, TOLD, seconds=1.6)
    adapts = Adapting(settings(), say=said.append)
    assert adapts.resume(json.loads(json.dumps(before.known()))) == limits(2)
    assert said == ["async.adapt: goes on with max_staleness 2, max_batch_size 8, max_wait_ms 0"]
    assert adapts.as_metrics() == {**before.as_metrics(), "async/adapt/changes": 0}
    assert adapts.known()["limits"] == before.known()["limits"]


def test_a_run_of_another_config_or_from_a_checkpoint_without_limits_begins_with_its_own():
    before, said = Adapting(settings()), []
    adapts = Adapting(settings(train={"max_staleness": 3}), say=said.append)
    assert adapts.resume(None) is None
    assert said == []
    assert adapts.resume(before.known()) is None
    assert said == ["async.adapt: begins anew, as the config allows something else than before"]
    assert adapts.as_metrics()["async/adapt/max_staleness"] == 1


def test_the_end_of_a_run_names_the_command_for_what_takes_a_restart_if_there_is_a_trace_to_read():
    closing = Adapting(settings()).closing("runs/one")
    assert closing.startswith("async.adapt: shards, micro-batches, ranks and levels take a restart")
    assert closing.endswith("rlinf-async plan runs/one")
    assert Adapting(settings(trace=False)).closing("runs/one") is None
