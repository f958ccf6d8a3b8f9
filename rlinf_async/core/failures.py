"""Errors that end a run, and the choice of the first among several."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Iterable
from typing import Literal

FailedEnv = Literal["env failed", "simulator died", "simulator hangs", "not finite"]
"""The kinds of failures of environments."""


class PeerError(RuntimeError):
    """A wait ended because another task or process failed, which reports that failure itself."""


class RankLost(PeerError):
    """The inference rank that had taken a request is lost: the asker repeats the request."""


class DeadlineError(RuntimeError):
    """A wait passed its deadline; the message names the missing events, with counts."""


class Terminated(SystemExit):
    """A signal told the process to end. The exit status is 128 plus the signal's number, as in a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class SimulatorDied(RuntimeError):
    """A simulator's process has died, or was killed because it did not answer; the message says how."""


class StuckThread(RuntimeError):
    """Environments hang in a thread, which cannot be killed; the message has its stack."""


class ForeignError(RuntimeError):
    """An error raised by foreign code (environments, models, frameworks), as text.

    The original exception may end an event loop (`SystemExit`), look like a cancellation (`CancelledError`),
    be refused by a future (`StopIteration`), fail to be pickled or printed, or keep the objects of its frames
    alive. This one is plain text, and safe wherever an exception may go.
    """

    def __init__(self, kind: str, message: str = "") -> None:
        # Both arguments: pickle rebuilds an exception from the arguments of its base class.
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    @classmethod
    def of(cls, error: BaseException) -> ForeignError:
        """The class and message of `error`; its traceback becomes a note."""
        if isinstance(error, ForeignError):
            return error
        foreign = cls(_name(error), _text(error))
        foreign.add_note(_frames(error))
        return foreign

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class NothingLeftError(ValueError):
    """A run is resumed from a checkpoint of its last step, or of a later one."""

    def __init__(self, message: str, *, automatic: bool) -> None:
        super().__init__(message)
        self.automatic = automatic
        """True if the run resumes from any checkpoint there is: then it has just ended, and nothing is
        wrong."""


class FailedForGood(RuntimeError):
    """Foreign code has failed, and would fail again, so that the run ends. Raised from its error, if any."""

    def __init__(self, message: str, *, kind: str = "") -> None:
        """`kind`: the class name of the foreign error, kept here because pickling loses `__cause__`."""
        super().__init__(message)
        self.kind = kind


class PolicyFailure(FailedForGood):
    """The policy has failed, so no shard can act."""


class EnvironmentsFailed(FailedForGood):
    """The environments of a shard cannot be built, or have failed too often."""


class ShardFailure(RuntimeError):
    """The environments of one shard cannot continue, and may be built again.

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
        """The error that the environments raised; this failure itself if they raised none."""
        return self.__cause__ or self

    @property
    def kind(self) -> str:
        """The class name of `error`."""
        return kind_of(self.error)


LONGEST_ERROR = 200
"""Most characters of a foreign error within a sentence."""
LONGEST_MESSAGE = 20_000
"""Most characters of a foreign error's message that are kept."""


def _name(error: BaseException) -> str:
    return type(error).__name__


WARNING_WORDS = "a warning, which PYTHONWARNINGS or python -W makes an error: "
"""Words before the message of a warning that was raised: the fault is in the environment, not in the code."""


def _text(error: BaseException) -> str:
    try:
        is_filtered = isinstance(error, Warning) and any(one[0] == "error" for one in warnings.filters)
        return f"{WARNING_WORDS * is_filtered}{error}"[:LONGEST_MESSAGE]
    except BaseException as again:  # noqa: BLE001 foreign `__str__` may raise anything
        return f"(its message cannot be shown: {_name(again)})"


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except BaseException as again:  # noqa: BLE001 it calls foreign `__str__` and `__repr__`
        return f"(its frames cannot be shown: {_name(again)})"


def kind_of(error: BaseException) -> str:
    """The name of the error's class; for a `ForeignError`, of the class of the original error."""
    return error.kind if isinstance(error, ForeignError) else _name(error)


def words_of(error: BaseException) -> str:
    """An error as text, even if its `__str__` fails: its class and its message, if any.

    Some messages only say that another exception passed (`coroutine raised StopIteration`, RLinf's
    `SystemExit caught in ..., traceback is below: ...`). Then the text adds that exception, and the line that
    raised it.
    """
    words = str(error if isinstance(error, ForeignError) else ForeignError(_name(error), _text(error)))
    head, begins, trace = words.partition(TRACE_HEAD)
    if begins:
        return f"{head.rstrip()} {origin_of(trace)}".strip()
    if ORDER_PASSED.search(words) and (trace := frames_of(error)).count(TRACE_HEAD) > 1:
        return f"{words} ({origin_of(trace)})"
    return words


def one_line(error: BaseException, most: int | None = None) -> str:
    """`words_of` an error on one line, cut after `most` characters if that is given."""
    return " ".join(words_of(error).split())[:most]


TRACE_HEAD = "Traceback (most recent call last):"
ORDER_PASSED = re.compile(r"\bStop(?:Async)?Iteration$")
"""The end of Python's message about a `StopIteration` that left a coroutine or a generator."""
_FRAME_LINE = re.compile(r'  File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<function>\S+)')
_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?::.*)?$", re.MULTILINE)
"""The line of a traceback that names the error: not indented, it begins with the name of a class."""


def origin_of(trace: str) -> str:
    """Return the first error of a chain in a printed traceback, and the line that raised it."""
    *earlier, last = [part for part in trace.split(TRACE_HEAD) if part.strip()] or [""]
    # A part that ends within a line is of an error that quotes another traceback: it was not the first.
    first = next((part for part in earlier if part.rstrip(" ").endswith("\n")), last)
    error = _ERROR_LINE.search(first)
    frames = list(_FRAME_LINE.finditer(first, 0, error.start() if error else len(first)))
    words = error[0] if error else "an error without a message"
    if not frames:
        return words
    place = frames[-1]
    return f"{words}, raised in {place['function']}, line {place['line']} of {place['file']}"


def in_words(error: BaseException) -> str:
    """`words_of` an error as records show it: of Ray's error for an error in another process, its cause."""
    # Ray's own message is a whole traceback.
    of_ray = type(error).__module__.partition(".")[0] == "ray"
    if of_ray and isinstance(cause := getattr(error, "cause", None), BaseException):
        return in_words(cause)
    return words_of(error)


def frames_of(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, as Python prints it."""
    return "\n".join(getattr(error, "__notes__", [])) if isinstance(error, ForeignError) else _frames(error)


def first_cause(errors: Iterable[BaseException]) -> BaseException:
    """The error to report: the first that is no `PeerError`, with groups flattened; else the first.

    Raises:
        ValueError: `errors` is empty.
    """
    flat: list[BaseException] = []
    for error in errors:
        flat.extend(error.exceptions if isinstance(error, BaseExceptionGroup) else [error])
    if not flat:
        raise ValueError("no error was given")
    if any(isinstance(error, BaseExceptionGroup) for error in flat):
        return first_cause(flat)
    return next((error for error in flat if not isinstance(error, PeerError)), flat[0])
