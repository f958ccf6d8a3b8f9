"""What is tried first and by which guess, when steps differ too much for it, and what a trial has shown."""

import math
import random

import numpy as np
import pytest

from rlinf_async.core.adaptation import GAIN, LEAST, LOSS, MOST, REST, SETTLING, SURE, WORTH, Adaptation
from rlinf_async.core.guesses import FULL, SHORT, Limits, Measured


def adaptation(*, start, ceiling=None, least_batch=4, batches=True):
    """Limits are a bound, a size and a wait, in this order; by default no more than `start` is allowed."""
    begin, most = (
        Limits(max_staleness=bound, max_batch_size=size, max_wait_s=wait)
        for bound, size, wait in (start, ceiling or start)
    )
    return Adaptation(begin, ceiling=most, least_batch=least_batch, decisions=8, batches=batches)


def step(seconds=4.0, env_steps=1000, **seen):
    """A step whose learner waits half of the time for simulators that are late, with nearly empty passes."""
    late = {"learner_waits": 0.5, "held_back": (0.0, 0.6), "batch_wait_s": 0.0, "forward_s": 0.0}
    idle = {"inference_busy": 0.3, "batch_size": 1.0}
    return Measured(seconds=seconds, env_steps=env_steps, **{**late, **idle, **seen})


def first(adapts, *, within=SETTLING + MOST, **seen):
    """What is tried first where every step is the same; None where nothing is."""
    return next(filter(None, (adapts.step(step(**seen)) for _ in range(within))), None)


def relative_error(paces):
    return np.std(paces, ddof=1) / math.sqrt(len(paces)) / np.mean(paces)


IDLE, BUSY = {"inference_busy": 0.3}, {"inference_busy": 0.95}
QUEUED = {**BUSY, "batch_wait_s": 0.3}
EARLY = {"held_back": (0.2, 0.1)}


@pytest.mark.parametrize(
    ("start", "ceiling", "seen", "change", "saved", "because"),
    [
        # The bound: by what the learner waits, by what the shard that is held back least stands at the gate,
        # and never by more than nine tenths.
        ((1, 64, 0), (3, 64, 0), {**EARLY, "learner_waits": 0.05}, ("max_staleness", 1, 2), 0.05,
         "the learner waits 5% of the time, and every shard is held back 10% or more"),
        ((1, 64, 0), (3, 64, 0), EARLY, ("max_staleness", 1, 2), 0.1,
         "the learner waits 50% of the time, and every shard is held back 10% or more"),
        ((1, 64, 0), (2, 64, 0), {"held_back": (1.0,), "learner_waits": 1.0}, ("max_staleness", 1, 2), 0.9,
         "the learner waits 100% of the time, and every shard is held back 100% or more"),
        ((2, 64, 0), None, {}, ("max_staleness", 2, 1), 0.0,
         "a larger bound has to go on paying for itself"),
        # A shorter wait: by what eight decisions have waited, by what the learner waits, by what is idle.
        ((1, 64, 0.02), None, {"batch_wait_s": 0.05}, ("max_wait_s", 0.02, 0), 0.1,
         "requests wait 10% of the time while inference is idle 70% of it"),
        ((1, 64, 0.02), None, {"batch_wait_s": 0.05, "learner_waits": 0.04}, ("max_wait_s", 0.02, 0), 0.04,
         "requests wait 10% of the time while inference is idle 70% of it"),
        ((1, 64, 0.02), None, {"batch_wait_s": 0.3, "inference_busy": 0.7}, ("max_wait_s", 0.02, 0), 0.3,
         "requests wait 60% of the time while inference is idle 30% of it"),
        # A longer wait: at first half a pass, then twice as long, never more than a pass or the user's. By
        # what passes lack, by what the learner waits, by what eight decisions stand in the queue.
        ((1, 64, 0), (1, 64, 1), {**QUEUED, "forward_s": 0.05, "batch_size": 48.0},
         ("max_wait_s", 0, 0.025), 0.25,
         "inference is busy 95% of the time, with passes that are 75% full"),
        ((1, 64, 0.01), (1, 64, 1), {**QUEUED, "forward_s": 0.05, "batch_size": 48.0, "learner_waits": 0.1},
         ("max_wait_s", 0.01, 0.02), 0.1,
         "inference is busy 95% of the time, with passes that are 75% full"),
        ((1, 64, 0), (1, 64, 1), {**BUSY, "batch_wait_s": 0.04, "forward_s": 0.05, "batch_size": 48.0},
         ("max_wait_s", 0, 0.025), 0.08,
         "inference is busy 95% of the time, with passes that are 75% full"),
        ((1, 64, 0.01), (1, 64, 1), {**QUEUED, "forward_s": 0.015, "batch_size": 32.0},
         ("max_wait_s", 0.01, 0.015), 0.5,
         "inference is busy 95% of the time, with passes that are 50% full"),
        ((1, 64, 0.01), (1, 64, 0.012), {**QUEUED, "inference_busy": SHORT, "forward_s": 0.05,
                                         "batch_size": 32.0},
         ("max_wait_s", 0.01, 0.012), 0.5,
         "inference is busy 80% of the time, with passes that are 50% full"),
        # A smaller batch: by the smaller part of simulators and inference, and by what the learner waits.
        ((1, 64, 0), None, {"batch_size": FULL * 64}, ("max_batch_size", 64, 32), 0.3,
         "all shards ask at the same time, and inference is idle 70% of it"),
        ((1, 63, 0), None, {"batch_size": 63.0, "inference_busy": 0.75}, ("max_batch_size", 63, 31), 0.25,
         "all shards ask at the same time, and inference is idle 25% of it"),
        ((1, 8, 0), None, {"batch_size": 8.0, "learner_waits": 0.1}, ("max_batch_size", 8, 4), 0.1,
         "all shards ask at the same time, and inference is idle 70% of it"),
        # A larger batch: twice as large, by no more than half, as the passes become half as many.
        ((1, 16, 0), (1, 64, 0), {**BUSY, "batch_size": 16.0, "learner_waits": 0.2},
         ("max_batch_size", 16, 32), 0.2,
         "inference is busy 95% of the time, with full passes"),
        ((1, 48, 0), (1, 64, 0), {**BUSY, "batch_size": 48.0, "learner_waits": 0.8},
         ("max_batch_size", 48, 64), 0.5,
         "inference is busy 95% of the time, with full passes"),
        ((1, 16, 0), (1, 64, 0), {"inference_busy": SHORT, "batch_size": 16.0, "learner_waits": 0.1},
         ("max_batch_size", 16, 32), 0.1,
         "inference is busy 80% of the time, with full passes"),
    ],
)  # fmt: skip
def test_a_change_is_guessed_to_save_what_it_can_at_most_and_says_why(
    start, ceiling, seen, change, saved, because
):
    adapts = adaptation(start=start, ceiling=ceiling)
    tried = first(adapts, within=SETTLING + LEAST, **seen)
    knob, before, after = change
    assert (tried.verdict, tried.knob, tried.before) == ("tried", knob, before)
    assert tried.after == pytest.approx(after)
    assert tried.guess == pytest.approx(saved / (1 - saved))
    assert (tried.gain, tried.error, tried.because) == (None, 0, because)
    assert getattr(adapts.limits, knob) == tried.after


@pytest.mark.parametrize(
    ("start", "ceiling", "seen"),
    [
        ((0, 64, 0), (0, 64, 0), {"held_back": (0.5,)}),  # the bound of a run that is never late
        ((1, 64, 0), (2, 64, 0), {"held_back": ()}),  # no shard is known to be early
        ((1, 64, 0), (1, 64, math.inf), {"batch_wait_s": 0.3}),  # nobody waits on purpose
        ((1, 64, 0), None, {"batch_size": 32.0, "forward_s": 0.1, **QUEUED}),  # as long as the user allows
        ((1, 64, 0), (1, 64, 1), {"batch_size": 32.0, "forward_s": 0.0, **QUEUED}),  # as long as a pass
        (
            (1, 64, 0.02),
            (1, 64, 1),
            {**QUEUED, "batch_size": 32.0, "forward_s": 0.022, "inference_busy": 0.99},
        ),
        (
            (1, 64, 0),
            (1, 64, 1),
            {"batch_size": 32.0, "forward_s": 0.1, **BUSY},
        ),  # nobody stands in the queue
        ((1, 64, 0), None, {"batch_size": 47.0, **IDLE}),  # passes are not full
        ((1, 7, 0), None, {"batch_size": 7.0, **IDLE}),  # half is less than a shard
        ((1, 64, 0), None, {"batch_size": 64.0, **BUSY}),  # as large as the user allows
    ],
)
def test_nothing_is_tried_that_is_not_allowed_or_cannot_help(start, ceiling, seen):
    assert first(adaptation(start=start, ceiling=ceiling), **seen) is None


def held(shares):
    """What is guessed of a larger bound, as a share of the time; `shares` are those of [step, shard]."""
    adapts = adaptation(start=(1, 64, 0), ceiling=(2, 64, 0))
    rows = [[0.0] * len(shares[0])] * SETTLING + [list(row) for row in shares]
    (event,) = filter(None, [adapts.step(step(held_back=tuple(row))) for row in rows])
    return event.guess / (1 + event.guess)


def test_the_least_of_many_shards_is_guessed_higher_by_the_deviation_of_the_largest_of_so_many():
    draw = np.random.default_rng(3)
    shares = np.clip(draw.normal(0.3, 0.1, size=(LEAST, 64)), 0, 1)
    shares[:, 0] = draw.normal(0.1, 0.02, size=LEAST)  # one that is late by more than chance
    error = shares[:, 0].std(ddof=1) / math.sqrt(LEAST)
    assert held(shares) == pytest.approx(shares[:, 0].mean() + math.sqrt(2 * math.log(64)) * error)


def test_where_shards_differ_by_chance_the_guess_lies_between_the_least_and_all_of_them():
    shares = np.clip(np.random.default_rng(4).normal(0.4, 0.1, size=(LEAST, 64)), 0, 1)
    assert shares.mean(axis=0).min() + 0.05 < held(shares) < shares.mean()


def test_no_shard_is_guessed_to_be_held_back_more_than_all_on_average():
    assert held([[0.0, 0.2], [0.2, 0.0], [0.0, 0.2], [0.2, 0.0], [0.1, 0.1]]) == pytest.approx(0.1)


@pytest.mark.parametrize(("share", "tried"), [(0.999, False), (1.0, True)])
def test_a_guess_below_what_is_worth_it_is_not_tried(share, tried):
    saved = share * WORTH / (1 + WORTH)
    adapts = adaptation(start=(1, 64, 0), ceiling=(2, 64, 0))
    change = first(adapts, within=SETTLING + LEAST, held_back=(saved,))
    assert (change is not None) == tried


def test_of_two_changes_the_one_with_the_larger_guess_comes_first():
    for held_back, knob in ((0.2, "max_wait_s"), (0.4, "max_staleness")):
        adapts = adaptation(start=(1, 64, 0.02), ceiling=(2, 64, 0.02))
        assert first(adapts, held_back=(held_back,), batch_wait_s=0.15).knob == knob


@pytest.mark.parametrize(
    "seen",
    [
        {"batch_wait_s": 0.3},
        {"batch_size": 32.0, "forward_s": 0.05, **QUEUED},
        {"batch_size": 64.0},
    ],
)
def test_without_batches_neither_their_size_nor_their_wait_is_changed(seen):
    limits = {"start": (1, 64, 0.02), "ceiling": (1, 128, 1)}
    assert first(adaptation(**limits), **seen) is not None
    assert first(adaptation(**limits, batches=False), **seen) is None


@pytest.mark.parametrize("noise", [0.001, 0.004, 0.02, 0.04, 0.2])
def test_a_bound_is_tried_from_the_first_step_on_at_which_steps_differ_little_enough(noise):
    """Raising, once a trial could show the guess; lowering, once it could show a loss or steps run out."""
    draw, guess = random.Random(5), 0.05 / 0.95
    paces = [4.0 * math.exp(draw.gauss(0, noise)) for _ in range(60)]
    for lowers in (False, True):
        begun = None
        for seen in range(LEAST, len(paces) + 1):
            window = paces[max(0, seen - MOST) : seen]
            error = SURE * math.sqrt(2) * relative_error(window)
            if error < LOSS or len(window) == MOST if lowers else error < guess - GAIN:
                begun = SETTLING + seen
                break
        adapts = adaptation(start=(1 + lowers, 64, 0), ceiling=(2, 64, 0))
        told = [adapts.step(step(seconds, held_back=(0.05,))) for seconds in [9.0] * SETTLING + paces]
        assert next((number for number, event in enumerate(told, 1) if event), None) == begun


def test_a_trial_ends_when_its_gain_is_sure_or_steps_run_out_and_says_gain_and_error():
    """Both from the steps before it and after it, each after what settles, by the usual formulas."""
    ends = set()
    for seed in range(60):
        draw = random.Random(seed)
        draws = [4.0 * math.exp(draw.gauss(-0.01 * (seed % 4), 0.02)) for _ in range(MOST)]
        env_steps = [draw.randrange(500, 1500) for _ in range(MOST)]
        before = np.array([4.0 + 0.01 * draw.random() for _ in range(LEAST)])
        adapts = adaptation(start=(1, 64, 0), ceiling=(2, 64, 0))
        for seconds in [9.0] * SETTLING + list(before):
            event = adapts.step(step(seconds, held_back=(0.5,)))
        assert event.verdict == "tried"
        for seconds in [1.0] * SETTLING:
            assert adapts.step(step(seconds)) is None
        event, number = None, 0
        while event is None:
            event = adapts.step(step(draws[number] * env_steps[number] / 1000, env_steps[number]))
            number += 1
            after = np.array(draws[:number])
            ratio = before.mean() / after.mean()
            error = (
                ratio * np.hypot(relative_error(before), relative_error(after)) if number > 1 else math.inf
            )
            kept, lost = ratio - 1 - SURE * error > GAIN, ratio - 1 + SURE * error < GAIN
            assert (event is not None) == (number >= LEAST and (kept or lost or number == MOST))
        assert event.verdict == ("kept" if kept else "taken back")
        assert (event.gain, event.error) == (pytest.approx(ratio - 1), pytest.approx(error))
        assert adapts.limits.max_staleness == event.after == (2 if kept else 1)
        ends.add((event.verdict, LEAST < number < MOST, number == MOST))
    assert len(ends) >= 4  # sure at once, sure later, and never


def test_the_rest_after_the_end_of_a_trial_doubles_with_every_trial():
    adapts = adaptation(start=(1, 64, 0), ceiling=(2, 64, 0))
    events = [adapts.step(step(held_back=(0.5,))) for _ in range(700)]
    tried = [number for number, event in enumerate(events, 1) if event and event.verdict == "tried"]
    begun = took = SETTLING + LEAST
    assert tried == [begun + trials * took + REST * (2**trials - 1) for trials in range(6)]
