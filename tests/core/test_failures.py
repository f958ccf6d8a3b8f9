import asyncio
import traceback
import warnings

import pytest

from rlinf_async.core.failures import ForeignError, PeerError, ShardFailure, first_cause, words_of


def test_the_first_error_is_reported():
    first, second = ValueError("a"), ValueError("b")
    assert first_cause([first, second]) is first


def test_an_echo_is_passed_over_for_its_cause():
    cause = KeyError("a")
    assert first_cause([PeerError("echo"), cause]) is cause


def test_groups_are_taken_apart_however_deep():
    cause = KeyError("a")
    inner = ExceptionGroup("inner", [PeerError("echo"), cause])
    assert first_cause([PeerError("echo"), ExceptionGroup("outer", [inner, ValueError("later")])]) is cause


def test_only_echoes_leave_the_first_of_them():
    first = PeerError("a")
    assert first_cause([first, ExceptionGroup("more", [PeerError("b")])]) is first


def test_a_cancelled_loop_beside_a_failure_is_reported_after_it():
    group = BaseExceptionGroup("loops", [ValueError("a"), KeyboardInterrupt()])
    assert isinstance(first_cause([group]), ValueError)


def test_no_error_has_no_cause():
    with pytest.raises(ValueError, match=r"^no error was given$"):
        first_cause([])


def test_a_shard_that_fails_says_what_failed_in_its_environments_and_what_the_ledger_calls_it():
    cause = ZeroDivisionError("the simulator")
    failure = ShardFailure("shard 3 cannot go on")
    failure.__cause__ = cause
    assert str(failure) == "shard 3 cannot go on"
    assert failure.what == failure.reason == "env failed"
    assert failure.error is cause
    unusable = ShardFailure("no number", what="not finite")
    assert (unusable.reason, unusable.error) == ("not finite", unusable)
    assert ShardFailure("killed", what="simulator died").reason == "env failed"


def leaving():
    raise SystemExit("the licence has run out")


def wrapped(call):
    """As RLinf's `WorkerMeta` raises it again."""
    try:
        call()
    except (SystemExit, RuntimeError):
        message = (
            f"SystemExit caught in EnvWorker's function step, traceback is below: {traceback.format_exc()}"
        )
        return RuntimeError(message)


def test_an_error_that_quotes_a_traceback_says_what_was_raised_first_and_where():
    def again():
        raise wrapped(leaving)

    for error in (wrapped(leaving), wrapped(again), ForeignError.of(wrapped(leaving))):
        words = words_of(error)
        assert "SystemExit: the licence has run out, raised in leaving, line" in words.splitlines()[0]
        assert words.splitlines()[0].endswith("test_failures.py")
        assert "Traceback" not in words


@pytest.mark.parametrize("order", [StopIteration, StopAsyncIteration])
def test_an_order_that_python_puts_into_words_of_its_own_is_said_with_its_place(order):
    async def stepping():
        raise order("no more states")

    def playing():
        yield 1
        raise order("no more states")

    def play():
        list(playing())

    for call in (lambda: asyncio.run(stepping()), play):
        with pytest.raises((RuntimeError, order)) as raised:
            call()
        words = words_of(raised.value)
        if type(raised.value) is RuntimeError:
            assert f"({order.__name__}: no more states, raised in " in words
            assert "test_failures.py)" in words


def test_words_that_only_look_like_a_traceback_stay_within_a_line():
    assert words_of(ValueError("see Traceback (most recent call last):")) == (
        "ValueError: see an error without a message"
    )
    assert words_of(ValueError("it has met StopIteration")) == "ValueError: it has met StopIteration"


def test_a_warning_that_was_made_an_error_says_by_what():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeprecationWarning) as raised:
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        said = "DeprecationWarning: a warning, which PYTHONWARNINGS or python -W makes an error: old"
        assert words_of(raised.value) == words_of(ForeignError.of(raised.value)) == said
    with warnings.catch_warnings():
        warnings.resetwarnings()
        assert words_of(UserWarning("raised as an error")) == "UserWarning: raised as an error"
