"""Errors that end a run, and which of several was first."""

from __future__ import annotations

from collections.abc import Iterable


class PeerError(RuntimeError):
    """A wait ended because somebody else failed; the first failure is reported elsewhere."""


class DeadlineError(RuntimeError):
    """A wait outlived its deadline; the message says what was waited for, with counts."""


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
