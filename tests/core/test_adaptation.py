"""What changes by measurements alone: when, how far, how often, and back again."""

import json
import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from rlinf_async.core.adaptation import GAIN, LEAST, MOST, REST, SETTLING, Adaptation
from rlinf_async.core.guesses import Limits, Measured

AUTO = Limits(max_staleness=2, max_batch_size=64, max_wait_s=math.inf)


def adaptation(ceiling=AUTO, **start):
    begin = {"max_staleness": min(1, ceiling.max_staleness), "max_batch_size": ceiling.max_batch_size}
    return Adaptation(
        Limits(**{**begin, "max_wait_s": 0.0, **start}), ceiling=ceiling, least_batch=4, decisions=8
    )


def step(seconds=4.0, **seen):
    """A step whose learner waits, with simulators that are held back, unless said otherwise."""
    usual = {
        "learner_waits": 0.1,
        "held_back": (0.3, 0.05),
        "inference_busy": 0.3,
        "batch_size": 8.0,
        "batch_wait_s": 0.0,
        "forward_s": 0.02,
    }
    return Measured(seconds=seconds, env_steps=1000, **{**usual, **seen})


def run(adapts, steps, model):
    """The events of `steps` steps, with the number of the step; `model(limits, step)` is what is measured."""
    told = [(number, adapts.step(model(adapts.limits, number))) for number in range(1, steps + 1)]
    return [(number, event) for number, event in told if event is not None]


def verdicts(events):
    return [(event.verdict, event.knob, event.before, event.after) for _, event in events]


def test_the_bound_is_raised_where_the_learner_waits_and_every_shard_is_held_back_and_kept_if_it_helps():
    adapts = adaptation()
    events = run(adapts, 30, lambda limits, _: step(4.0 if limits.max_staleness == 1 else 3.8))
    assert verdicts(events) == [
        ("tried", "max_staleness", 1, 2),
        ("kept", "max_staleness", 1, 2),
    ]
    (begun, tried), (told, kept) = events
    assert begun == SETTLING + LEAST
    assert told - begun == SETTLING + LEAST
    assert tried.guess == pytest.approx(0.05 / 0.95)  # what the shard that is held back least stands there
    assert kept.gain == pytest.approx(4.0 / 3.8 - 1)
    assert adapts.limits.max_staleness == 2


def test_a_bound_that_does_not_help_is_taken_back():
    adapts = adaptation()
    events = run(adapts, 2 * (SETTLING + LEAST), lambda limits, _: step(4.0))
    assert verdicts(events) == [
        ("tried", "max_staleness", 1, 2),
        ("taken back", "max_staleness", 2, 1),
    ]
    assert adapts.limits.max_staleness == 1


def test_nothing_is_tried_while_the_slowest_shard_is_never_held_back_or_the_learner_does_not_wait():
    for seen in ({"held_back": (0.6, 0.0)}, {"learner_waits": 0.01}):
        assert run(adaptation(), 200, lambda limits, _, seen=seen: step(**seen)) == []


def test_who_is_held_back_is_judged_over_all_steps_and_not_step_by_step():
    """A different shard is late in each step, and none of them always."""
    late = [(0.0, 0.2), (0.2, 0.0)]
    events = run(adaptation(), 20, lambda limits, number: step(held_back=late[number % 2]))
    assert verdicts(events)[0] == ("tried", "max_staleness", 1, 2)


def test_a_bound_that_has_stopped_to_help_is_lowered_again():
    def model(limits, number):
        return step(3.8 if limits.max_staleness == 2 and number < 30 else 4.0)

    adapts = adaptation()
    events = verdicts(run(adapts, 30 + MOST + SETTLING + LEAST, model))
    assert events[-2:] == [("tried", "max_staleness", 2, 1), ("kept", "max_staleness", 2, 1)]
    assert adapts.limits.max_staleness == 1


def test_a_bound_that_still_helps_is_lowered_for_a_trial_and_raised_again():
    adapts = adaptation()
    events = run(adapts, 60, lambda limits, _: step(4.0 if limits.max_staleness == 1 else 3.8))
    assert verdicts(events)[2:] == [
        ("tried", "max_staleness", 2, 1),
        ("taken back", "max_staleness", 1, 2),
    ]
    assert adapts.limits.max_staleness == 2


def test_a_wait_of_the_users_is_dropped_where_inference_is_idle_while_requests_wait():
    ceiling = Limits(max_staleness=1, max_batch_size=64, max_wait_s=0.02)
    adapts = adaptation(ceiling, max_wait_s=0.02)
    run(adapts, 30, lambda limits, _: step(4.0 + 4 * limits.max_wait_s, batch_wait_s=limits.max_wait_s))
    assert adapts.limits.max_wait_s == 0.0


def test_requests_wait_where_passes_are_small_and_inference_is_short_but_no_longer_than_a_pass_takes():
    def model(limits, _):
        queue = {"inference_busy": 0.99, "batch_wait_s": 0.2}
        return step(4.0 - 10 * limits.max_wait_s, held_back=(0.0,), learner_waits=0.5, **queue)

    adapts = adaptation()
    events = verdicts(run(adapts, 200, model))
    tried = [after for verdict, _, _, after in events if verdict == "tried"]
    assert tried == [pytest.approx(0.01), pytest.approx(0.02)]
    assert adapts.limits.max_wait_s == pytest.approx(0.02)


def test_a_wait_that_the_user_has_set_is_never_exceeded():
    ceiling = Limits(max_staleness=1, max_batch_size=64, max_wait_s=0.0)
    model = step(inference_busy=0.95, learner_waits=0.5, batch_wait_s=0.2)
    assert run(adaptation(ceiling), 100, lambda limits, _: model) == []


def test_a_batch_is_halved_where_all_shards_ask_at_once_and_never_below_a_shard():
    def model(limits, _):
        return step(4.0 + limits.max_batch_size / 64, batch_size=limits.max_batch_size, held_back=(0.0,))

    adapts = adaptation()
    run(adapts, 3000, model)
    assert adapts.limits.max_batch_size == 4


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_noise_alone_seldom_keeps_a_larger_bound(noise):
    kept = 0
    for seed in range(100):
        draw = random.Random(seed)
        model = lambda limits, _, draw=draw: step(4.0 * math.exp(draw.gauss(0, noise)))  # noqa: E731
        events = run(adaptation(), SETTLING + MOST + SETTLING + MOST, model)
        kept += ("kept", "max_staleness", 1, 2) in verdicts(events)
    assert kept <= 10


def test_a_gain_beyond_the_noise_is_found():
    kept = 0
    for seed in range(100):
        draw = random.Random(seed)
        model = lambda limits, _, draw=draw: step(  # noqa: E731
            (4.0 if limits.max_staleness == 1 else 3.6) * math.exp(draw.gauss(0, 0.02))
        )
        events = run(adaptation(), SETTLING + MOST + SETTLING + MOST, model)
        kept += ("kept", "max_staleness", 1, 2) in verdicts(events)
    assert kept >= 95


def test_whatever_is_measured_limits_stay_within_what_the_user_allows_and_trials_become_rare():
    steps, ceiling = 1500, Limits(max_staleness=3, max_batch_size=48, max_wait_s=0.05)
    for seed in range(10):
        draw, adapts = random.Random(seed), adaptation(ceiling, max_wait_s=0.05)
        seen, events = [], []
        for _ in range(steps):
            event = adapts.step(
                step(
                    draw.uniform(1, 5),
                    learner_waits=draw.random(),
                    held_back=(draw.random(), draw.random()),
                    inference_busy=draw.choice((0.2, 0.95)),
                    batch_size=draw.uniform(1, adapts.limits.max_batch_size),
                    batch_wait_s=draw.uniform(0, 0.2),
                    forward_s=draw.uniform(0, 0.2),
                )
            )
            seen.append(adapts.limits)
            events += [event] if event else []
        assert all(1 <= one.max_staleness <= 3 for one in seen)
        assert all(4 <= one.max_batch_size <= 48 for one in seen)
        assert all(0 <= one.max_wait_s <= 0.05 for one in seen)
        changed = sum(one != other for one, other in pairwise(seen))
        assert changed == sum(event.verdict != "kept" for event in events)
        trials = sum(event.verdict == "tried" for event in events)
        assert 1 <= trials <= 6 * (1 + math.log2(1 + steps / REST))


def test_only_one_thing_changes_at_a_time():
    draw, adapts = random.Random(0), adaptation()
    before = adapts.limits
    for _ in range(500):
        event = adapts.step(step(draw.uniform(3, 4), inference_busy=0.95, batch_size=60.0))
        changed = [
            name
            for name in ("max_staleness", "max_batch_size", "max_wait_s")
            if getattr(before, name) != getattr(adapts.limits, name)
        ]
        assert changed == ([event.knob] if event and event.verdict != "kept" else [])
        before = adapts.limits


def test_raising_has_to_gain_more_than_lowering_may_cost():
    """A gain between the two is neither: what is raised for it would be lowered again."""
    adapts = adaptation()
    small = 1 + GAIN / 2
    events = run(adapts, 60, lambda limits, _: step(4.0 if limits.max_staleness == 1 else 4.0 / small))
    assert "kept" not in [event.verdict for _, event in events]


def test_a_run_that_goes_on_from_a_checkpoint_tries_what_the_one_before_it_would_have_tried():
    """After a trial is taken back both settle and remember no step, so that all else must be known."""
    compared = 0
    for seed in range(20):
        draw, adapts = random.Random(seed), adaptation()
        events = [adapts.step(step(draw.uniform(3.9, 4.1))) for _ in range(100)]
        events += [None] * 100
        while not (events[-1] and events[-1].verdict == "taken back"):
            events.append(adapts.step(step(draw.uniform(3.9, 4.1))))
        other = adaptation()
        assert other.resume(json.loads(json.dumps(adapts.known())))
        later = [step(draw.uniform(3.5, 4.1)) for _ in range(300)]
        after = [(adapts.step(one), other.step(one), adapts.limits == other.limits) for one in later]
        assert all(one == again and same for one, again, same in after)
        compared += sum(one is not None for one, _, _ in after)
    assert compared > 20


def test_what_has_been_kept_is_in_force_after_a_resume_and_what_is_on_trial_is_not():
    adapts = adaptation()
    faster = lambda limits, _: step(4.0 if limits.max_staleness == 1 else 3.8)  # noqa: E731
    run(adapts, SETTLING + LEAST, faster)
    assert (adapts.limits.max_staleness, adapts.known()["limits"]["max_staleness"]) == (2, 1)
    run(adapts, SETTLING + LEAST, faster)
    resumed = adaptation()
    assert resumed.resume(adapts.known())
    assert resumed.limits == Limits(max_staleness=2, max_batch_size=64, max_wait_s=0.0)
    # The opposite rests, too, as it would have without the interruption.
    assert run(resumed, REST - 1, faster) == []


@pytest.mark.parametrize("other", [{"max_staleness": 3}, {"max_batch_size": 32}, {"max_wait_s": 0.1}])
def test_what_another_config_allowed_is_not_gone_on_with(other):
    adapts = adaptation()
    run(adapts, 40, lambda limits, _: step(4.0 if limits.max_staleness == 1 else 3.8))
    ceiling = replace(AUTO, **other)
    resumed = adaptation(ceiling)
    assert not resumed.resume(adapts.known())
    assert resumed.limits == adaptation(ceiling).limits
