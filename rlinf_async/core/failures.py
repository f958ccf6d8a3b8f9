"""Errors that end a run, and which of several was first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

FailedEnv = Literal["env failed", "simulator died", "simulator hangs", "not finite"]
"""How environments fail."""


class PeerError(RuntimeError):
    """A wait ended because somebody else failed; the first failure is reported elsewhere."""


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


class ShardFailure(RuntimeError):
    """The environments of one shard cannot go on, and may be built anew; raised from their error, if any."""

    def __init__(self, message: str, *, what: FailedEnv = "env failed") -> None:
        super().__init__(message)
        self.what = what

    @property
    def reason(self) -> str:
        """What the ledger calls the rollout that is lost."""
        return "not finite" if self.what == "not finite" else "env failed"

    @property
    def error(self) -> BaseException:
        """What was wrong: the error of the environments, or that none of their outputs can be used."""
        return self.__cause__ or self


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
