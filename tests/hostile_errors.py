"""Exceptions that code of others may raise, and that mean something to whoever catches them, or break him."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest


class UnprintableError(Exception):
    """Nobody can show it."""

    def __str__(self) -> str:
        raise KeyError("no words")

    __repr__ = __str__


class LeavesWhenPrintedError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


class NotTextError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class UnpackableError(Exception):
    """It holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class TwoWordsError(Exception):
    """It cannot be unpickled: it is made of other arguments than it has."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class ItsOwnCauseError(Exception):
    def __init__(self) -> None:
        super().__init__("round and round")
        self.cause = self


class AskedForItsCauseError(Exception):
    @property
    def cause(self) -> object:
        raise KeyboardInterrupt


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


@dataclass(frozen=True)
class Raised:
    """What is raised, and what its class is called in records."""

    kind: str
    make: Callable[[], BaseException]

    def fail(self, *_: object, **__: object) -> None:
        raise self.make()


class _Recursion(Raised):
    def fail(self, *_: object, **__: object) -> None:
        recurse()


def _raised(make: Callable[[], BaseException]) -> Raised:
    return Raised(type(make()).__name__, make)


_ALL = [
    *(
        _raised(kind)
        for kind in (
            ValueError,
            StopIteration,
            StopAsyncIteration,
            SystemExit,
            KeyboardInterrupt,
            GeneratorExit,
            MemoryError,
            asyncio.CancelledError,
            asyncio.InvalidStateError,
            UnprintableError,
            LeavesWhenPrintedError,
            NotTextError,
            UnpackableError,
            ItsOwnCauseError,
            AskedForItsCauseError,
        )
    ),
    Raised("CancelledError", concurrent.futures.CancelledError),
    Raised("TimeoutError", asyncio.TimeoutError),
    _raised(lambda: SystemExit(0)),
    _raised(lambda: ValueError("first line\nsecond line\n" * 10_000)),
    _raised(lambda: TwoWordsError("one", "other")),
    _raised(lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit(0)])),
    _raised(lambda: ExceptionGroup("several", [ValueError("one"), UnprintableError()])),
    _Recursion("RecursionError", RecursionError),
]
RAISED = [pytest.param(raised, id=f"{raised.kind}-{number}") for number, raised in enumerate(_ALL)]
"""Parameters of a test that wants each."""
ALL_RAISED = tuple(_ALL)
_WORST = (StopIteration, SystemExit, asyncio.CancelledError, UnprintableError, UnpackableError)
WORST = [parameter for parameter in RAISED if parameter.values[0].make in _WORST]
"""Those of them that have each stopped somebody in a way of their own; of whole runs, which take long."""
