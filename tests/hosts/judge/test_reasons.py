"""The message of a config that cannot run, for several reasons."""

from rlinf_async.hosts.judge.reasons import Reason, RefusedError


def reasons(*overrides):
    return [Reason(f"fault {number}", override) for number, override in enumerate(overrides)]


def shown(error):
    return [line.removeprefix("  - ") for line in str(error).splitlines() if line.startswith("  - ")]


def test_of_many_reasons_those_that_no_override_mends_are_shown_first():
    error = RefusedError(reasons("a=1", "b=1", "c=1", "", "d=1", ""))
    assert shown(error) == ["fault 3", "fault 5", "fault 0"]
    assert str(error).splitlines()[-1] == "as overrides: a=1 b=1 c=1 d=1"
    assert [reason.text for reason in error.reasons] == [f"fault {number}" for number in range(6)]


def test_a_few_reasons_are_all_shown_in_their_order():
    assert shown(RefusedError(reasons("a=1", "", "b=1"))) == ["fault 0", "fault 1", "fault 2"]
