"""Which steps are drawn, and what is counted of it."""

import weakref

import pytest

from rlinf_async.core.frame_counts import FrameCount, FrameMeter, count_of
from rlinf_async.core.frames import Frames


def test_outside_of_a_decision_everything_is_drawn():
    frames = Frames()
    assert [frames.step(2) for _ in range(3)] == [True] * 3
    assert frames.count == FrameCount(6, 0)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_of_a_decision_the_last_step_is_drawn(steps):
    frames = Frames()
    for _ in range(3):
        with frames.decision(steps):
            assert [frames.step(4) for _ in range(steps)] == [False] * (steps - 1) + [True]
    assert frames.count == FrameCount(3 * 4, 3 * 4 * (steps - 1))


def test_what_follows_the_last_step_of_a_decision_is_drawn():
    frames = Frames()
    with frames.decision(2):
        frames.step(1)
        frames.step(1)
        assert frames.moment(1)
        assert frames.step(1)


@pytest.mark.parametrize("taken", [1, 2])
def test_a_decision_of_fewer_steps_than_said_is_an_error(taken):
    frames = Frames()

    def decide():
        with frames.decision(3):
            for _ in range(taken):
                frames.step(1)

    with pytest.raises(RuntimeError, match=f"taken {taken} steps instead of 3"):
        decide()
    assert frames.step(1)


def test_a_decision_in_which_nothing_steps_shows_nothing_new():
    frames = Frames()
    with frames.decision(3):
        pass
    assert frames.drawing


def test_an_error_in_a_decision_is_the_one_that_is_raised():
    frames = Frames()

    def fail():
        with frames.decision(3):
            frames.step(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert frames.step(1)


def settle(frames, steps):
    with frames.settling():
        return [frames.moment(1), *(frames.step(1) for _ in range(steps))]


def test_the_first_reset_is_drawn_and_of_later_ones_the_last_step():
    frames = Frames()
    assert settle(frames, 4) == [True] * 5
    for _ in range(2):
        assert settle(frames, 4) == [False] * 4 + [True]


def test_a_reset_inside_of_a_decision_ends_with_a_step_that_is_drawn():
    frames = Frames()
    settle(frames, 3)
    with frames.decision(2):
        assert [frames.step(1), frames.step(1)] == [False, True]
        assert settle(frames, 3)[-1]


def test_a_reset_that_settles_longer_is_drawn_to_its_end():
    frames = Frames()
    settle(frames, 2)
    assert settle(frames, 4)[1:] == [False, True, True, True]
    assert settle(frames, 4)[1:] == [False, False, False, True]


def test_a_reset_that_settles_in_fewer_steps_is_an_error():
    frames = Frames()
    settle(frames, 4)
    with pytest.raises(RuntimeError, match="the last was not drawn"):
        settle(frames, 2)


def test_environments_that_count_nothing_have_no_share():
    assert count_of(object()) == FrameCount()
    assert FrameCount().shares == {}
    assert FrameCount(1, 3).shares == {"frames": 0.75}


class Env:
    def __init__(self, **facts):
        vars(self).update(facts)


def test_a_meter_reads_what_was_counted_since_through_wrappers_and_replacements():
    inner = Env(frames_drawn=2, frames_left_out=8)
    wrapped, other = Env(unwrapped=inner), Env(frames_drawn=1, frames_left_out=4)
    meter = FrameMeter()
    assert meter.pop([wrapped, other]) == FrameCount(3, 12)
    inner.frames_drawn, inner.frames_left_out = 3, 12
    assert meter.pop([wrapped, other]) == FrameCount(1, 4)
    new = Env(frames_drawn=1, frames_left_out=1, frames_drawn_s=0.5)
    assert meter.pop([wrapped, new]) == FrameCount(1, 1, 0.5)
    new.frames_drawn_s = 2.0
    assert meter.pop([wrapped, new]) == FrameCount(0, 0, 1.5)


def test_a_meter_keeps_no_environments_that_were_replaced():
    env, meter = Env(frames_drawn=2, frames_left_out=8), FrameMeter()
    meter.pop([env])
    assert meter.pop([env]) == FrameCount()
    replaced = weakref.ref(env)
    del env
    assert replaced() is None
