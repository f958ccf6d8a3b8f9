"""Remote calls of a run, watched together: the first failure anywhere ends every wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from rlinf_async.core.failures import DeadlineError, PeerError, first_cause

GRACE_S = 2.0
"""How long to wait, after a failure, for the failure that caused it."""


class Fleet:
    """The worker groups of a run, called directly through Ray.

    RLinf's own `WorkerGroup` calls answer a failure by killing the driver; these raise it instead, so that
    the run can end in order, with the first error on the screen and exit status 1.
    """

    def __init__(self, groups: dict[str, Any], *, deadline_s: float) -> None:
        self._groups = groups
        self._deadline_s = deadline_s
        self.while_waiting: Callable[[], float] = lambda: 60.0
        """Called again and again during every wait; returns the seconds until it wants to be called again."""
        self._background: dict[Any, str] = {}

    def actors(self, name: str) -> list[Any]:
        """Ray's handles of a group, in the order of the ranks."""
        return [worker.worker for worker in self._groups[name].worker_info_list]

    def call(self, name: str, method: str, *arguments: Any) -> list[Any]:
        """Start `method` on every rank of group `name`."""
        return [getattr(actor, method).remote(*arguments) for actor in self.actors(name)]

    def run(self, name: str, method: str, *arguments: Any) -> list[Any]:
        """`call` and `wait`."""
        return self.wait(self.call(name, method, *arguments), f"{method} on the {name} workers")

    def watch(self, references: Sequence[Any], what: str) -> None:
        """A failure of one of `references` ends every wait from now on."""
        self._background.update(dict.fromkeys(references, what))

    def wait(self, references: Sequence[Any], what: str) -> list[Any]:
        """The results, in order.

        Raises:
            DeadlineError: they took longer than the deadline.
            Exception: the first error of these calls or of a watched one.
        """
        pending = list(references)
        give_up = time.monotonic() + self._deadline_s
        while pending:
            ended = f"{len(references) - len(pending)} of {len(references)} ranks are done"
            done = self._next(pending, give_up, f"{what}: {ended}")
            pending = [reference for reference in pending if reference not in done]
        return ray.get(list(references))

    def first(self, references: Sequence[Any], what: str) -> None:
        """Return when one of `references` has ended; raises what `wait` raises."""
        give_up = time.monotonic() + self._deadline_s
        while not any(reference in references for reference in self._next(references, give_up, what)):
            pass

    def _next(self, pending: Sequence[Any], give_up: float, what: str) -> list[Any]:
        """What has ended next, of `pending` and of what is watched; nothing if that takes long."""
        left = give_up - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"waited {self._deadline_s:g} s for {what}")
        watched = list({**dict.fromkeys(pending), **self._background})
        done, _ = ray.wait(watched, num_returns=1, timeout=min(left, self.while_waiting()))
        self._raise_failures(done, pending)
        for reference in done:
            self._background.pop(reference, None)
        return done

    def ended(self, references: Sequence[Any], seconds: float) -> bool:
        """Whether calls end, well or badly, within `seconds`."""
        _, left = ray.wait(list(references), num_returns=len(references), timeout=seconds)
        return not left

    def kill(self) -> None:
        """End the processes of every group."""
        for name in self._groups:
            for actor in self.actors(name):
                ray.kill(actor)

    def _raise_failures(self, done: Sequence[Any], pending: Sequence[Any]) -> None:
        errors = [error for reference in done if (error := _error_of(reference)) is not None]
        if not errors:
            return
        if all(isinstance(error, PeerError) for error in errors):
            others = [other for other in {**dict.fromkeys(pending), **self._background} if other not in done]
            if others:
                later, _ = ray.wait(others, num_returns=len(others), timeout=GRACE_S)
                errors += [error for reference in later if (error := _error_of(reference)) is not None]
        raise first_cause(errors)


def _error_of(reference: Any) -> BaseException | None:
    try:
        ray.get(reference)
    except (ray.exceptions.RayError, PeerError, DeadlineError) as error:
        return error
    return None
