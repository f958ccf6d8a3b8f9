"""Errors that end a run, and which of several was first."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from typing import Literal

FailedEnv = Literal["env failed", "simulator died", "simulator hangs", "not finite"]
"""The ways in which environments fail."""


class PeerError(RuntimeError):
    """A wait ended because somebody else failed; the first failure is reported elsewhere."""


class RankLost(PeerError):
    """The inference rank that had taken a request is lost: who still waits for the answer asks again."""


class DeadlineError(RuntimeError):
    """A wait outlived its deadline; the message says what was waited for, with counts."""


class Terminated(SystemExit):
    """The process was asked to end by a signal. Its exit status is 128 and the number, as a shell has it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class SimulatorDied(RuntimeError):
    """The process of a simulator has ended, or was ended because it gave no answer; the message says how."""


class StuckThread(RuntimeError):
    """Environments hang in a thread that nothing can end; the message has its stack."""


class ForeignError(RuntimeError):
    """An error of code that is not ours, in words.

    What others raise may end an event loop (`SystemExit`), be taken for an order (`CancelledError`), be
    refused by a future (`StopIteration`), fail to be packed or to be printed, or hold whatever its frames
    hold. This does nothing of the kind: it is text, and goes wherever an exception may.
    """

    def __init__(self, kind: str, message: str = "") -> None:
        # With both: pickle builds an exception anew from what its base class was given.
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    @classmethod
    def of(cls, error: BaseException) -> ForeignError:
        """The words of `error`; the frames that it was raised in are a note."""
        if isinstance(error, ForeignError):
            return error
        foreign = cls(_name(error), _text(error))
        foreign.add_note(_frames(error))
        return foreign

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class FailedForGood(RuntimeError):
    """Code that is not ours has failed, and would fail again: the run ends; raised from its error, if any."""

    def __init__(self, message: str, *, kind: str = "") -> None:
        """`kind`: the class of that error, which is known of this where its cause is lost on the way."""
        super().__init__(message)
        self.kind = kind


class PolicyFailure(FailedForGood):
    """The policy has failed, so no shard can act."""


class EnvironmentsFailed(FailedForGood):
    """The environments of a shard cannot be built, or have failed too often."""


class ShardFailure(RuntimeError):
    """The environments of one shard cannot go on, and may be built again.

    Raised from the `ForeignError` of the environments, if they raised an error.
    """

    def __init__(self, message: str, *, what: FailedEnv = "env failed") -> None:
        super().__init__(message)
        self.what = what

    @property
    def reason(self) -> str:
        """The reason under which the ledger counts the lost rollout."""
        return "not finite" if self.what == "not finite" else "env failed"

    @property
    def error(self) -> BaseException:
        """The error of the environments, or this failure itself where none of their outputs can be used."""
        return self.__cause__ or self

    @property
    def kind(self) -> str:
        """The class of that error."""
        return kind_of(self.error)


LONGEST_MESSAGE = 20_000
"""Characters that are kept of what an error of others says."""


def _name(error: BaseException) -> str:
    return type(error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_MESSAGE]
    except BaseException as again:  # noqa: BLE001 it is code of others, which may raise anything
        return f"(its message cannot be shown: {_name(again)})"


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except BaseException as again:  # noqa: BLE001 it prints what code of others says of itself
        return f"(its frames cannot be shown: {_name(again)})"


def kind_of(error: BaseException) -> str:
    """The name of its class; of an error of others, which was put into words, that of theirs."""
    return error.kind if isinstance(error, ForeignError) else _name(error)


def words_of(error: BaseException) -> str:
    """An error in words, whatever it does when it is asked for them: its type and its message, if any.

    Where it only says that another one passed, which is an order to Python (`coroutine raised StopIteration`,
    RLinf's `SystemExit caught in ..., traceback is below: ...`), that one and its place follow.
    """
    words = str(error if isinstance(error, ForeignError) else ForeignError(_name(error), _text(error)))
    head, begins, trace = words.partition(TRACE_HEAD)
    if begins:
        return f"{head.rstrip()} {origin_of(trace)}".strip()
    if ORDER_PASSED.search(words) and (trace := frames_of(error)).count(TRACE_HEAD) > 1:
        return f"{words} ({origin_of(trace)})"
    return words


TRACE_HEAD = "Traceback (most recent call last):"
ORDER_PASSED = re.compile(r"\bStop(?:Async)?Iteration$")
"""The end of what Python says of such an error that was raised where it means something else."""
_FRAME_LINE = re.compile(r'  File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<function>\S+)')
_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?::.*)?$", re.MULTILINE)
"""A line of a traceback that is not indented, and begins with the name of a class."""


def origin_of(trace: str) -> str:
    """Return the first error of a chain in a printed traceback, and where it was raised, in words."""
    *earlier, last = [part for part in trace.split(TRACE_HEAD) if part.strip()] or [""]
    # An error that quotes a further traceback in its own line was not the first.
    first = next((part for part in earlier if part.rstrip(" ").endswith("\n")), last)
    error = _ERROR_LINE.search(first)
    frames = list(_FRAME_LINE.finditer(first, 0, error.start() if error else len(first)))
    words = error[0] if error else "an error without words"
    if not frames:
        return words
    place = frames[-1]
    return f"{words}, raised in {place['function']}, line {place['line']} of {place['file']}"


def frames_of(error: BaseException) -> str:
    """Return the frames of an error and of its causes, as Python prints them."""
    return "\n".join(getattr(error, "__notes__", [])) if isinstance(error, ForeignError) else _frames(error)


def first_cause(errors: Iterable[BaseException]) -> BaseException:
    """The error to report: the first that is not the echo of another's, groups taken apart.

    Raises:
        ValueError: there is no error.
    """
    flat: list[BaseException] = []
    for error in errors:
        flat.extend(error.exceptions if isinstance(error, BaseExceptionGroup) else [error])
    if not flat:
        raise ValueError("no error was given")
    if any(isinstance(error, BaseExceptionGroup) for error in flat):
        return first_cause(flat)
    return next((error for error in flat if not isinstance(error, PeerError)), flat[0])
