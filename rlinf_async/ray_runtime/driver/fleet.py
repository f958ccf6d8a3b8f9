"""Remote calls of a run, watched together: the first failure anywhere ends every wait.

Theory of operation. All waits of the driver pass `Fleet._next`, which waits for the given calls and for
everything that goes on meanwhile: watched calls, and revivals. A revival is a generator that brings a dead
process back: it yields the calls that it waits for and is resumed when they have ended, so that the driver
never blocks and needs no thread. When the process of a kept loop dies, the reference to the loop's call
stands for the loop of the new process, also in waits that had begun before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import ray

from rlinf_async.core.failures import DeadlineError, PeerError, first_cause
from rlinf_async.observe.spans import Process
from rlinf_async.ray_runtime.cluster.ray_processes import dead_process
from rlinf_async.ray_runtime.handles import remote_method

DEATHS = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError)
"""Ray's errors for calls to a process that has died; the second is raised if its node is lost as well."""
CAUSE_GRACE_S = 2.0
"""Seconds that the driver waits, after a failure, for the failure that caused it."""


P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Calls that a revival waits for, `seconds` at most; their first error is raised in the revival."""

    calls: Sequence[Any] = ()
    seconds: float


Revival = Generator[Wait, None, Any]
"""Brings a process back, and returns the call of its loop, or None if the run goes on without the process. If
the calls of a `Wait` take too long, a TimeoutError is raised in it."""
Revive = Callable[[int, BaseException], Revival]
"""Returns the revival of a rank, given its number and the error of its dead process."""


@dataclass(eq=False)
class _Loop:
    """A call that lasts as long as the run, in the present process of `rank`."""

    group: str
    rank: int
    call: Any
    revive: Revive
    revival: Revival | None = None
    calls: Sequence[Any] = ()
    give_up: float = 0.0
    """The time until which the revival waits for `calls`."""
    over: bool = False
    """True if the process died after `let_go`, or was given up."""


class Fleet:
    """The processes of a run in groups, called directly through Ray.

    A failure is raised in the driver, so that the run ends in order, with the first error on the screen and
    exit status 1. (Worker groups of frameworks may kill the driver instead.) The death of a process with a
    kept loop is no failure.
    """

    def __init__(self, groups: Mapping[str, Sequence[Any]], *, deadline_s: float) -> None:
        """`groups` are Ray's handles by group, in the order of the ranks; `deadline_s` limits each wait."""
        self._groups = {name: list(actors) for name, actors in groups.items()}
        self._deadline_s = deadline_s
        self.while_waiting: Callable[[], float] = lambda: 60.0
        """Called repeatedly during every wait; returns the seconds until its next call is due."""
        self._background: dict[Any, str] = {}
        self._loops: dict[Any, _Loop] = {}
        """Kept loops, by the call of each in its first process."""
        self._ending = False

    def actors(self, name: str) -> list[Any]:
        """Ray's handles of a group, in the order of the ranks."""
        return self._groups[name]

    def add(self, name: str, actor: Any) -> None:
        """Add `actor` as the last process of group `name`."""
        self._groups[name].append(actor)

    def replace(self, name: str, rank: int, actor: Any) -> None:
        """Make `actor` the process of `rank` in group `name`, in place of one that has died."""
        self._groups[name][rank] = actor

    def call(
        self, name: str, method: Callable[Concatenate[Any, P], Any], *arguments: P.args, **keywords: P.kwargs
    ) -> list[Any]:
        """Start `method`, an attribute of the class of group `name`, on every rank of the group."""
        return [remote_method(actor, method).remote(*arguments, **keywords) for actor in self.actors(name)]

    def call_framework(self, name: str, method: str, *arguments: object) -> list[Any]:
        """Start `method` of a framework's own class, which this package cannot refer to, on every rank."""
        return [remote_method(actor, method).remote(*arguments) for actor in self.actors(name)]

    def run(
        self, name: str, method: Callable[Concatenate[Any, P], Any], *arguments: P.args, **keywords: P.kwargs
    ) -> list[Any]:
        """`call` and `wait`."""
        return self.wait(
            self.call(name, method, *arguments, **keywords), f"{method.__name__} on the {name} workers"
        )

    def run_framework(self, name: str, method: str, *arguments: object) -> list[Any]:
        """`call_framework` and `wait`."""
        return self.wait(self.call_framework(name, method, *arguments), f"{method} on the {name} workers")

    def run_on_living(
        self, name: str, method: Callable[Concatenate[Any, P], Any], *arguments: P.args, **keywords: P.kwargs
    ) -> list[Any]:
        """`run`, with None for ranks that have died, or die meanwhile, if loops of the group are kept."""
        actors = self.actors(name)
        absent = {
            loop.rank for loop in self._loops.values() if loop.group == name and (loop.revival or loop.over)
        }
        calls = {
            rank: remote_method(actor, method).remote(*arguments, **keywords)
            for rank, actor in enumerate(actors)
            if rank not in absent
        }
        revives = any(loop.group == name for loop in self._loops.values())
        self._wait(list(calls.values()), f"{method.__name__} on the {name} workers", lenient=revives)
        return [_result_of_living(calls[rank]) if rank in calls else None for rank in range(len(actors))]

    def watch(self, references: Sequence[Any], purpose: str) -> None:
        """From now on raise a failure of one of `references` in every wait."""
        self._background.update(dict.fromkeys(references, purpose))

    def keep(self, name: str, references: Sequence[Any], purpose: str, revive: Revive) -> None:
        """`watch` the loops of group `name`, by rank; `revive` brings a process back that dies."""
        self.watch(references, purpose)
        for rank, call in enumerate(references):
            self._loops[call] = _Loop(group=name, rank=rank, call=call, revive=revive)

    def let_go(self) -> None:
        """Bring no process back any more; a loop ends with its process from now on."""
        self._ending = True
        for loop in self._loops.values():
            if loop.revival is not None:
                loop.revival.close()
                loop.revival, loop.over = None, True

    def wait(self, references: Sequence[Any], purpose: str) -> list[Any]:
        """Return the results, in order; None for the loop of a process that has died after `let_go`.

        Raises:
            DeadlineError: the calls took longer than the deadline.
            Exception: the first error of these calls or of a watched one.
        """
        self._wait(references, purpose)
        return [self._result(reference) for reference in references]

    def _wait(self, references: Sequence[Any], purpose: str, *, lenient: bool = False) -> None:
        pending = list(references)
        give_up = time.monotonic() + self._deadline_s
        while pending := [reference for reference in pending if not self._is_over(reference)]:
            progress = f"{len(references) - len(pending)} of {len(references)} ranks are done"
            ready = self._next(pending, give_up, f"{purpose}: {progress}", lenient=lenient)
            pending = [reference for reference in pending if reference not in ready]

    def first(self, references: Sequence[Any], purpose: str) -> None:
        """Return when one of `references` has ended. Raises the same errors as `wait`."""
        give_up = time.monotonic() + self._deadline_s
        while not any(reference in references for reference in self._next(references, give_up, purpose)):
            pass

    def ended(self, references: Sequence[Any], seconds: float) -> bool:
        """Return True if all `references` end within `seconds`, with or without an error."""
        calls = [self._call(reference) for reference in references]
        _, pending = ray.wait(calls, num_returns=len(calls), timeout=seconds)
        return not pending

    def kill(self) -> None:
        """End the processes of every group.

        If Ray is down, the processes end by themselves; a call to Ray would then join any cluster that it
        finds.
        """
        if not ray.is_initialized() or dead_process() is not None:
            return
        for actors in self._groups.values():
            for actor in actors:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)

    def deaths(self) -> list[BaseException]:
        """Return Ray's errors for the processes that have died and are not brought back.

        A process that answers within `CAUSE_GRACE_S` lives; a process that neither answers nor is reported
        dead is left out.
        """
        calls = [actor.place.remote() for actors in self._groups.values() for actor in actors]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=CAUSE_GRACE_S)
        errors = [death_of(call) for call in calls if call in ready]
        return [error for error in errors if isinstance(error, ray.exceptions.ActorDiedError)]

    def names(self, kinds: Mapping[str, Process]) -> dict[str, str]:
        """Return the names of processes in records, by Ray's actor IDs; `kinds` gives each group's name."""
        return {
            # A private attribute of Ray's: its errors name actors by this ID.
            actor._actor_id.hex(): kinds[group].numbered(rank)
            for group, actors in self._groups.items()
            for rank, actor in enumerate(actors)
        }

    def _next(
        self, pending: Sequence[Any], give_up: float, purpose: str, *, lenient: bool = False
    ) -> list[Any]:
        """Return the next call that has ended, of `pending` or the watched ones; [] if none has ended soon.

        `lenient`: deaths among `pending` are no failures.
        """
        now = time.monotonic()
        if now >= give_up:
            raise DeadlineError(f"waited {self._deadline_s:g} s for {purpose}")
        soon = min(give_up - now, self.while_waiting(), self._revive())
        reference_of = {
            self._call(reference): reference
            for reference in {**dict.fromkeys(pending), **self._background}
            if not self._is_absent(reference)
        }
        calls = [call for loop in self._loops.values() if loop.revival for call in _pending_of(loop.calls)]
        # `ray.wait` returns at once for an empty list: the caller's loop would spin.
        if not reference_of and not calls:
            time.sleep(max(0.0, soon))
            return []
        # `ray.wait` returns one call; other calls that have ended come in the next rounds.
        ready, _ = ray.wait([*reference_of, *calls], num_returns=1, timeout=max(0.0, soon))
        results = [reference_of[call] for call in ready if call in reference_of]
        # The death of a kept loop is no result: its reference now stands for the loop of the new process.
        results = [reference for reference in results if not self._died(reference)]
        self._raise_failures(results, pending, lenient=lenient)
        for reference in results:
            self._background.pop(reference, None)
        return results

    def _call(self, reference: Any) -> Any:
        """The present call that `reference` stands for."""
        loop = self._loops.get(reference)
        return loop.call if loop else reference

    def _result(self, reference: Any) -> Any:
        return None if self._is_over(reference) else ray.get(self._call(reference))

    def _is_absent(self, reference: Any) -> bool:
        loop = self._loops.get(reference)
        return loop is not None and (loop.revival is not None or loop.over)

    def _is_over(self, reference: Any) -> bool:
        loop = self._loops.get(reference)
        return loop is not None and loop.over

    def _died(self, reference: Any) -> bool:
        """Return True if `reference` is the kept loop of a dead process, and begin its revival."""
        loop = self._loops.get(reference)
        if loop is None or (error := death_of(loop.call)) is None:
            return False
        if self._ending:
            loop.over = True
        else:
            loop.revival, loop.calls, loop.give_up = loop.revive(loop.rank, error), (), 0.0
        return True

    def _revive(self) -> float:
        """Resume every revival that has ended its wait; return the seconds until the next one times out."""
        soon = float("inf")
        for loop in self._loops.values():
            while loop.revival is not None and (seconds := self._seconds_left(loop)) is None:
                self._resume(loop, loop.revival)
            if loop.revival is not None and seconds is not None:
                soon = min(soon, seconds)
        return soon

    def _seconds_left(self, loop: _Loop) -> float | None:
        """Return the seconds that a revival still waits at most; None if its wait is over."""
        seconds = loop.give_up - time.monotonic()
        return None if seconds <= 0 or (loop.calls and not _pending_of(loop.calls)) else seconds

    def _resume(self, loop: _Loop, revival: Revival) -> None:
        late = bool(_pending_of(loop.calls))
        errors = [error for call in loop.calls if not late and (error := _error_of(call)) is not None]
        try:
            if late:
                # The revival decides: it may restart the process once more, or give up and raise.
                wait = revival.throw(TimeoutError("a restarted process does not answer"))
            else:
                wait = revival.throw(errors[0]) if errors else next(revival)
        except StopIteration as came:
            loop.revival, loop.calls = None, ()
            if came.value is None:
                loop.over = True
            else:
                loop.call = came.value
        else:
            loop.calls, loop.give_up = wait.calls, time.monotonic() + wait.seconds

    def _raise_failures(self, ready: Sequence[Any], pending: Sequence[Any], *, lenient: bool) -> None:
        calls = [self._call(reference) for reference in ready]
        if lenient:
            calls = [call for call in calls if call not in pending or death_of(call) is None]
        errors = [error for call in calls if (error := _error_of(call)) is not None]
        if not errors:
            return
        # A `PeerError` follows from a failure elsewhere, which may arrive a moment later.
        if all(isinstance(error, PeerError) for error in errors):
            echoes = [
                self._call(other)
                for other in {**dict.fromkeys(pending), **self._background}
                if other not in ready and not self._is_absent(other)
            ]
            if echoes:
                later, _ = ray.wait(echoes, num_returns=len(echoes), timeout=CAUSE_GRACE_S)
                errors += [error for call in later if (error := _error_of(call)) is not None]
        raise first_cause(errors)


def death_of(call: object) -> BaseException | None:
    """Return Ray's error if the called process has died; None if the call has ended otherwise.

    A RayTaskError of the same class is no death of the called process: it has called another one that died.
    """
    error = _error_of(call)
    return error if isinstance(error, DEATHS) and not isinstance(error, ray.exceptions.RayTaskError) else None


def _pending_of(calls: Sequence[Any]) -> list[Any]:
    if not calls:
        return []
    return ray.wait(list(calls), num_returns=len(calls), timeout=0)[1]


def _result_of_living(call: Any) -> Any:
    with suppress(*DEATHS):
        return ray.get(call)
    return None


def _error_of(reference: Any) -> BaseException | None:
    try:
        # Only given calls that have ended, so that this does not block.
        ray.get(reference)
    except (ray.exceptions.RayError, PeerError, DeadlineError) as error:
        return error
    return None
