import pytest

from rlinf_async.core.failures import PeerError, ShardFailure, first_cause


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
