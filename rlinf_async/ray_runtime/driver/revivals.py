"""Brings back an env worker or an inference rank that has died, while all other processes go on.

Ray starts its process again, behind the same handle. Two things are left to do: first no other process waits
for the dead any more, and late calls of it are ignored (`_forget`); then the new process is built and joins
the run (`_bring_back`). Results that the dead had handed over stay; the work that it was doing is done again.

Ray starts no process again whose node is lost. Then a host may start an env worker on another node, as its
shards have places in every batch that no other worker fills: another process behind another handle, which
joins in the same way. An inference rank is given up, if another one is left: `_forget` has already given its
work to the others, and nothing more is done.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from rlinf_async.core.restarts import RestartBudget
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.failures import FaultKind, in_words, record_failure
from rlinf_async.observe.spans import Process, SpanLog, kind_and_rank
from rlinf_async.ray_runtime.driver.fleet import Fleet, Revival, Wait
from rlinf_async.ray_runtime.handles import Handle, remote_method
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker
from rlinf_async.wire.connection import lost_nodes
from rlinf_async.wire.memory import machine

STARTED_AGAIN: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0}
"""Options of actors that Ray starts again when they die; calls of the dead are not repeated."""
AGAIN_S = 0.5
"""Between two tries to reach a process that is being started."""
PROCESS_OF_GROUP = {
    "env": Process.ENV,
    "inference": Process.INFERENCE,
    "learner": Process.LEARNER,
    "requests": Process.REQUESTS,
    "coordinator": Process.COORDINATOR,
}
"""The groups of a run, and the names of their processes in records."""
RESTART_METRICS = {"env": "async/restarts/env_worker", "inference": "async/restarts/inference"}
DEATH_WORDS: dict[str, FaultKind] = {"env": "env worker died", "inference": "inference rank died"}
RunLoop = Callable[[Any, Any, Handle, Handle], object]
"""A method that lasts as long as the run; it takes the settings, the request channel and the coordinator."""
LOOP_METHODS: dict[str, RunLoop] = {"env": ShardWorker.run_shards, "inference": InferenceWorker.serve}

Member = tuple[str, int]
"""A group, and a rank in it."""
Elsewhere = Callable[[int], tuple[Handle, str] | None]
"""Starts the process of a rank on another node, as its own is lost: its handle, and the address of the node;
None where no other node may hold it."""


class Revivals:
    """Brings processes of a run back, as often as the run may; fills `fleet.Revive`."""

    def __init__(
        self,
        fleet: Fleet,
        settings: RunSettings,
        *,
        requests: Handle,
        coordinator: Handle,
        rebuild: Mapping[str, Callable[..., Any] | str],
        elsewhere: Mapping[str, Elsewhere],
        run_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        """`rebuild` names, by group, the method that builds what a process holds; `elsewhere` has the groups
        whose processes outlive the loss of their nodes.
        """
        self._fleet, self._settings = fleet, settings
        self._requests, self._coordinator = requests, coordinator
        self._rebuild, self._run_dir, self._say = rebuild, run_dir, say
        self._elsewhere = elsewhere
        self._survive, self._advanced = settings.asynchrony.survive, settings.asynchrony.advanced
        self.working = False
        """True if a step has been trained: a death before is a mistake of the set-up."""
        self._spans = SpanLog(None)
        self._places: dict[Member, tuple[str, int]] = {}
        self._generations: Counter[Member] = Counter()
        self._budgets: dict[Member, RestartBudget] = {}
        self._silent: set[Member] = set()
        """Processes that were ended because they did not answer."""
        self._away: set[Member] = set()
        """Processes that are being brought back, or are given up."""
        self._given_up: set[Member] = set()
        self._new_nodes: dict[Member, str] = {}
        """The nodes on which processes are being built that were elsewhere before."""
        self._restarts: Counter[str] = Counter()

    def of(self, group: str) -> bool:
        """Return True if processes of `group` are brought back."""
        return group in self._settings.restartable and group in self._rebuild

    def join(self, spans: SpanLog) -> None:
        """Learn where the processes are, and record in `spans` which of them were brought back."""
        self._spans = spans
        for group in PROCESS_OF_GROUP:
            for rank, place in enumerate(self._fleet.run(group, RunProcess.place)):
                self._places[group, rank] = place

    def begin(self, group: str, rank: int, died: BaseException) -> Revival:
        """Bring `rank` of `group` back, which `died`; None in place of its loop if it is given up.

        Raises:
            RuntimeError: it has died before the first step, or too often, with the count and the last death;
                or it cannot be started, and the run cannot do without it.
        """
        member, began = (group, rank), time.monotonic()
        name = PROCESS_OF_GROUP[group].numbered(rank)
        if not self.working:
            # Started again it would only die again, for minutes, of the same mistake.
            # From its death, here and below: `endings` reads off the cause which process has ended, and why.
            raise RuntimeError(f"{name} has died before a step was trained") from died
        self._away.add(member)
        kind: FaultKind = "silent" if member in self._silent else DEATH_WORDS[group]
        losses = None
        while True:
            # A new life begins: `_forget` tells the other processes, which then ignore calls of the old one.
            self._generations[member] += 1
            wait = self._budget(member).take(time.monotonic())
            if wait is None:
                record_failure(
                    self._run_dir, process=name, what=kind, error=in_words(died), action="the run ends"
                )
                raise RuntimeError(self._too_often(name, died)) from died
            self._say(f"{name}: {kind}; it is started again")
            loss = yield from self._forget(member)
            # What the first death lost: a second one, while the process starts, has lost nothing more.
            losses = loss if losses is None else losses
            yield Wait(seconds=wait)
            try:
                loop = yield from self._bring_back_somewhere(member, name)
            # The successor died or hung while it was built: once more, within the same budget.
            except (ray.exceptions.RayActorError, TimeoutError) as again:
                if isinstance(again, ray.exceptions.RayTaskError):
                    raise  # what it says of others
                died = again
                if isinstance(again, TimeoutError):
                    self._end(member)
                continue
            break
        if loop is None:
            return None
        self._silent.discard(member)
        self._away.discard(member)
        self._restarts[RESTART_METRICS[group]] += 1
        seconds = time.monotonic() - began
        self._spans.add("restart", began, worker=name, error=type(died).__name__)
        self._say(f"{name} is back after {seconds:.0f} s; lost: {losses}")
        self._record_return(member, kind, died, lost=losses, seconds=seconds)
        return loop

    def _record_return(self, member: Member, kind: FaultKind, died: BaseException, **facts: Any) -> None:
        action = "started again in its place"
        if (node := self._new_nodes.pop(member, None)) is not None:
            kind, action = "node lost", f"started again on {node}"
        name = PROCESS_OF_GROUP[member[0]].numbered(member[1])
        record_failure(self._run_dir, process=name, what=kind, error=in_words(died), action=action, **facts)

    def _give_up(self, dead: Member, name: str, nowhere: BaseException) -> None:
        """Go on without `dead`, for which there is no node any more.

        Raises:
            RuntimeError: the run cannot.
        """
        self._given_up.add(dead)
        group, error = dead[0], f"its node is lost ({lost_nodes()})"
        ranks = self._fleet.actors(group)
        rest = len(ranks) - sum(member[0] == group for member in self._given_up)
        if group != "inference" or not rest:
            error += ", and none that is left can take its place"
            record_failure(self._run_dir, process=name, what="node lost", error=error, action="the run ends")
            raise RuntimeError(f"{name} cannot be started again: {error}") from nowhere
        self._say(f"{name} is given up, as {error}; {rest} of {len(ranks)} inference ranks go on")
        record_failure(self._run_dir, process=name, what="node lost", error=error, action="given up")

    def watches(self, process: str) -> bool:
        """Return True if a process has to answer calls now: it need not while its successor is built."""
        member = self._member_of(process)
        return self.working and member is not None and member not in self._away

    def silence(self, process: str) -> None:
        """End a process that does not answer, so that it is brought back.

        Raises:
            RuntimeError: it is none that can be, and is named.
        """
        if (member := self._member_of(process)) is None:
            return
        if self.of(member[0]):
            self._silent.add(member)
            self._end(member)
            return
        self._kill(member)  # nothing less ends a process that was stopped
        error = f"{process} has not answered for {self._advanced.silent_s:g} s (async.advanced.silent_s)"
        record_failure(self._run_dir, process=process, what="silent", error=error, action="the run ends")
        raise RuntimeError(error)

    def _member_of(self, process: str) -> Member | None:
        """The one that is called so; None for the driver."""
        kind, rank = kind_and_rank(process)
        group = next((group for group, name in PROCESS_OF_GROUP.items() if name == kind), None)
        return None if group is None else (group, rank or 0)

    def pop_metrics(self) -> dict[str, float]:
        """Return the number of processes that were brought back since the last call, by metric."""
        counts, self._restarts = self._restarts, Counter()
        return {name: float(counts[name]) for name in RESTART_METRICS.values()}

    def _budget(self, member: Member) -> RestartBudget:
        if member not in self._budgets:
            self._budgets[member] = RestartBudget(self._survive.process_restarts, self._advanced.window_s)
        return self._budgets[member]

    def _too_often(self, name: str, died: BaseException) -> str:
        most, window_s = self._survive.process_restarts, self._advanced.window_s
        return (
            f"{name} has died {most + 1} times within {window_s:g} s, more than "
            f"async.survive.process_restarts={most} allows; the last time: {in_words(died)}"
        )

    def _forget(self, member: Member) -> Generator[Wait, None, str]:
        """Have no process wait for the dead, and ignore its late calls; return the words for what was
        lost.
        """
        (group, rank), generation = member, self._generations[member]
        if group == "inference":
            # First it is given no request any more: what it has answered late, if it lives on beyond a link
            # that was cut, is by a version that was published when it was asked, or a newer one.
            yield self._soon(self._requests.rank_lost.remote(rank, generation))
            yield self._soon(self._coordinator.rank_lost.remote(rank, generation))
            return "nothing: what it had been asked is asked again"
        plan = self._settings.plan
        shards = list(plan.shards_of_worker(rank))
        # Both processes must know before the successor asks: a shard number is the same in both lives.
        rollouts = self._coordinator.shards_lost.remote(shards, generation)
        # Those of evaluation are numbered on.
        everything = shards + [plan.shards + shard for shard in shards]
        yield self._soon(rollouts, self._requests.shards_lost.remote(everything, generation))
        return f"{ray.get(rollouts)} rollouts"

    def _bring_back(self, member: Member, name: str) -> Generator[Wait, None, Any]:
        """Wait until Ray has started the process, and have it take its place; returns its loop."""
        group, rank = member
        actor = self._fleet.actors(group)[rank]
        yield from self._wait_for_start(member, actor)
        join = actor.join_run.remote(
            name,
            str(self._run_dir),
            clock=self._coordinator,
            generation=self._generations[member],
        )
        # The clock and the records come first, so that faults while it is built are recorded.
        yield self._soon(join)
        yield self._soon(remote_method(actor, self._rebuild[group]).remote())
        loop = remote_method(actor, LOOP_METHODS[group])
        return loop.remote(self._settings, self._requests, self._coordinator)

    def _bring_back_somewhere(self, member: Member, name: str) -> Generator[Wait, None, Any]:
        """`_bring_back`, on another node where its own is lost; None if it is given up.

        Raises:
            RuntimeError: there is no other, and the run cannot do without it.
        """
        while True:
            try:
                return (yield from self._bring_back(member, name))
            except ray.exceptions.ActorUnschedulableError as nowhere:
                if not self._move(member, name):
                    self._give_up(member, name, nowhere)
                    return None

    def _move(self, member: Member, name: str) -> bool:
        """Have `member` started on another node; False if there is none."""
        group, rank = member
        elsewhere = self._elsewhere.get(group)
        if elsewhere is None or (successor := elsewhere(rank)) is None:
            return False
        actor, self._new_nodes[member] = successor
        self._fleet.replace(group, rank, actor)
        self._places.pop(member, None)  # numbers of processes are those of a node
        self._say(f"{name} is started on {self._new_nodes[member]}, as its node is lost ({lost_nodes()})")
        return True

    def _wait_for_start(self, member: Member, actor: Handle) -> Generator[Wait, None, None]:
        before, give_up = self._places.get(member), time.monotonic() + self._advanced.start_s
        while True:
            call = actor.place.remote()
            try:
                yield self._soon(call)
                place = ray.get(call)
            except ray.exceptions.ActorDiedError as error:
                raise RuntimeError("a process that has died cannot be started again") from error
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() > give_up:
                    raise
                yield Wait(seconds=AGAIN_S)  # Ray is about to start it
                continue
            if place != before:
                self._places[member] = place
                return
            # Only the way to it was lost. What is counted as dead has to be dead.
            self._end(member)
            yield Wait(seconds=AGAIN_S)

    def _soon(self, *calls: object) -> Wait:
        return Wait(calls=calls, seconds=self._advanced.start_s)

    def _end(self, member: Member) -> None:
        """End a process, and have Ray start it again."""
        group, rank = member
        # `no_restart=False`: Ray starts it again behind the same handle, without a limit; the budget is kept
        # here.
        ray.kill(self._fleet.actors(group)[rank], no_restart=False)
        self._kill(member)

    def _kill(self, member: Member) -> None:
        """End a process of this machine, even one that was stopped."""
        node, number = self._places.get(member, ("", 0))
        if node == machine():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
