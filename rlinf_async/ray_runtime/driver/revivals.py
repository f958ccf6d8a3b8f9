"""Brings back an env worker or an inference rank that has died, while all other processes go on.

Ray starts a new process behind the same handle. Two things are left to do. First the other processes stop
waiting for the dead process, and ignore its late calls (`_forget`). Then the new process builds its
environments or its policy and joins the run (`_bring_back`). Results that the dead process had handed over
stay; its unfinished work is done again.

Ray does not restart the processes of a lost node. A host may then start an env worker on another node,
because no other worker fills the places of its shards in a batch: the new process has another handle, and
joins in the same way. An inference rank is given up if another one is left: `_forget` has already given its
work to the others.

The request channel of a lost node (`core.request_channels`) is given up as well: the env workers that used it
are lost, too, and inference ranks of other nodes leave it by themselves.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from rlinf_async.core.failures import in_words
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.faults import Fault, FaultKind
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import Process, SpanLog, kind_and_rank
from rlinf_async.ray_runtime.driver.fleet import DEATHS, Fleet, Revival, Wait
from rlinf_async.ray_runtime.handles import Handle, RequestChannels, remote_method
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker
from rlinf_async.wire.memory import machine
from rlinf_async.wire.nodes import is_lost, lost_nodes

RESTARTABLE_OPTIONS: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0}
"""Options of actors that Ray restarts when they die; calls that died with them are not repeated."""
START_POLL_S = 0.5
"""Seconds between two tries to reach a process that is being started."""
PROCESS_OF_GROUP = {
    "env": Process.ENV,
    "inference": Process.INFERENCE,
    "learner": Process.LEARNER,
    "requests": Process.REQUESTS,
    "coordinator": Process.COORDINATOR,
}
"""The groups of a run, with the names of their processes in records."""
RESTART_METRICS = {"env": "async/restarts/env_worker", "inference": "async/restarts/inference"}
DEATH_WORDS: dict[str, FaultKind] = {"env": "env worker died", "inference": "inference rank died"}
RunLoop = Callable[[Any, Any, RequestChannels, Handle], object]
"""A method that lasts as long as the run; it takes the settings, request channels and the coordinator."""
LOOP_METHODS: dict[str, RunLoop] = {"env": ShardWorker.run_shards, "inference": InferenceWorker.serve}

Member = tuple[str, int]
"""A group, and a rank in it."""
Elsewhere = Callable[[int], tuple[Handle, str] | None]
"""Starts the process of a rank on another node when its own is lost. Returns its handle and the address of
the node, or None if no other node has room for it."""


UNSAID_DEATH = "it has ended, or cannot be reached, and Ray does not know more"


def death_in_words(died: BaseException) -> str:
    """Return why a process has died, as records show it."""
    # Ray's own words are of its calls: `RpcError: RPC error: Socket closed rpc_code: 14`.
    return UNSAID_DEATH if isinstance(died, ray.exceptions.ActorUnavailableError) else in_words(died)


class Revivals:
    """Brings dead processes of a run back, as often as `async.survive` allows; fills `fleet.Revive`."""

    def __init__(
        self,
        fleet: Fleet,
        settings: RunSettings,
        *,
        requests: RequestChannels,
        coordinator: Handle,
        rebuild: Mapping[str, Callable[..., Any] | str],
        elsewhere: Mapping[str, Elsewhere],
        limit: Callable[[str, int, Handle], Any] = lambda *_: None,
        run_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        """`requests` may get further channels; `rebuild` and `elsewhere` are those of `LaunchedRun`;
        `limit` starts the call that limits a process to its share of a GPU, or returns None.
        """
        self._fleet, self._settings = fleet, settings
        self._requests, self._coordinator = requests, coordinator
        self._rebuild, self._run_dir, self._say = rebuild, run_dir, say
        self._elsewhere, self._limit = elsewhere, limit
        self._survive, self._advanced = settings.asynchrony.survive, settings.asynchrony.advanced
        self.working = False
        """True if a step has been trained; a death before that is taken for a mistake in the set-up."""
        self._spans = SpanLog(None)
        self._places: dict[Member, tuple[str, int]] = {}
        self._generations: Counter[Member] = Counter()
        self._budgets: dict[Member, RestartBudget] = {}
        self._silent: set[Member] = set()
        """Processes that were ended because they did not answer."""
        self._away: set[Member] = set()
        """Processes that are being brought back, or were given up."""
        self._given_up: set[Member] = set()
        self._new_nodes: dict[Member, str] = {}
        """The new nodes of processes that are being moved."""
        self._restarts: Counter[str] = Counter()

    def of(self, group: str) -> bool:
        """Return True if processes of `group` are brought back."""
        return group in self._settings.restartable and group in self._rebuild

    def none_of(self, group: str) -> bool:
        """Return True if no process of `group` has died."""
        return not any(count for member, count in self._generations.items() if member[0] == group)

    def go_on(self, settings: RunSettings) -> None:
        """Bring processes back with other settings from now on."""
        self._settings = settings

    def join(self, spans: SpanLog) -> None:
        """Ask all processes for their machines and numbers; restarts are recorded in `spans` from now on."""
        self._spans = spans
        for group in PROCESS_OF_GROUP:
            for rank, place in enumerate(self._fleet.run(group, RunProcess.place)):
                self._places[group, rank] = place

    def begin(self, group: str, rank: int, died: BaseException) -> Revival:
        """Bring `rank` of `group` back, after its error `died`; returns its loop, None if it is given up.

        Raises:
            RuntimeError: the process has died before the first step, or more often than allowed; or it cannot
                be started again, and the run cannot go on without it.
        """
        member, began = (group, rank), time.monotonic()
        name = PROCESS_OF_GROUP[group].numbered(rank)
        if not self.working:
            # A restarted process would only die of the same mistake again, for minutes. The death is the
            # cause of the error, here and below: `endings` finds the process and the reason in it.
            raise RuntimeError(f"{name} has died before a step was trained") from died
        self._away.add(member)
        kind: FaultKind = "silent" if member in self._silent else DEATH_WORDS[group]
        losses = None
        while True:
            # A new generation: `_forget` tells the other processes, which then ignore calls of earlier ones.
            self._generations[member] += 1
            wait = self._budget(member).take(time.monotonic())
            if wait is None:
                self._record(name, kind, death_in_words(died), "the run ends")
                raise RuntimeError(self._too_often(name, died)) from died
            self._say(f"{name}: {kind}; it is started again")
            loss = yield from self._forget(member)
            # Keep the losses of the first death: a second one, while the process starts, loses nothing more.
            losses = loss if losses is None else losses
            yield Wait(seconds=wait)
            try:
                loop = yield from self._bring_back_somewhere(member, name)
            # The new process died or hung while it was built: try once more, within the same budget.
            except (ray.exceptions.RayActorError, TimeoutError) as again:
                if isinstance(again, ray.exceptions.RayTaskError):
                    raise  # its own error, about another process
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
        self._record(name, kind, death_in_words(died), action, **facts)

    def _record(self, process: str, what: FaultKind, error: str, action: str, **facts: Any) -> None:
        fault = Fault(process=process, what=what, error=error, action=action, **facts)
        RunDir(self._run_dir).record(fault)

    def _give_up(self, dead: Member, name: str, nowhere: BaseException) -> None:
        """Go on without `dead`: its node is lost, and no other node has room for it.

        Raises:
            RuntimeError: the run cannot go on without it.
        """
        self._given_up.add(dead)
        group, error = dead[0], f"its node is lost ({lost_nodes()})"
        ranks = self._fleet.actors(group)
        rest = len(ranks) - sum(member[0] == group for member in self._given_up)
        if group != "inference" or not rest:
            error += ", and no remaining process can take its place"
            self._record(name, "node lost", error, "the run ends")
            raise RuntimeError(f"{name} cannot be started again: {error}") from nowhere
        self._say(f"{name} is given up, as {error}; {rest} of {len(ranks)} inference ranks go on")
        self._record(name, "node lost", error, "given up")

    def watches(self, process: str) -> bool:
        """Return True if a process has to answer calls now; one that is being brought back has not."""
        member = self._member_of(process)
        return self.working and member is not None and member not in self._away

    def silence(self, process: str) -> None:
        """Kill a process that does not answer, so that it is brought back.

        Raises:
            RuntimeError: processes of its group are not brought back; the message names the process.
        """
        if (member := self._member_of(process)) is None:
            return
        if self.of(member[0]):
            self._silent.add(member)
            self._end(member)
            return
        self._kill(member)  # SIGKILL: no other signal ends a stopped process
        error = f"{process} has not answered for {self._advanced.silent_s:g} s (async.advanced.silent_s)"
        self._record(process, "silent", error, "the run ends")
        raise RuntimeError(error)

    def death(self, process: str, question: Any) -> None:
        """Have every wait raise the death of a process that is not brought back; `question` is a call of it.

        A learner rank may die when its last call has ended, and inference ranks still load its weights. Of
        several request channels each has a call that lasts; see `without_channel`.
        """
        member = self._member_of(process)
        has_call = member is not None and member[0] == "requests" and len(self._requests) > 1
        if member is not None and not self.of(member[0]) and not has_call:
            self._fleet.watch([question], f"an answer of {process}")

    def _member_of(self, process: str) -> Member | None:
        """The group and rank of the process named `process`; None for the driver."""
        kind, rank = kind_and_rank(process)
        group = next((group for group, name in PROCESS_OF_GROUP.items() if name == kind), None)
        return None if group is None else (group, rank or 0)

    def pop_metrics(self) -> dict[str, float]:
        """Return the numbers of restarts since the last call, by metric."""
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
            f"async.survive.process_restarts={most} allows; the last time: {death_in_words(died)}"
        )

    def _forget(self, member: Member) -> Generator[Wait, None, str]:
        """Have the other processes stop waiting for the dead one and ignore its late calls.

        Returns a text about the lost work.
        """
        (group, rank), generation = member, self._generations[member]
        if group == "inference":
            # First the channel stops giving it requests. If the rank lives on behind a cut link, its late
            # answers come from the version that was published at the time of the request, or from a newer
            # one.
            yield from self._until_told(self._tell_channels(RequestChannel.rank_lost, rank, generation))
            yield self._soon(self._coordinator.rank_lost.remote(rank, generation))
            return "nothing: its requests are sent again"
        plan = self._settings.plan
        shards = list(plan.shards_of_worker(rank))
        # Both processes must know before the new env worker asks: its shards have the same numbers.
        rollouts = self._coordinator.shards_lost.remote(shards, generation)
        # Evaluation shards are numbered after all training shards.
        everything = shards + [plan.shards + shard for shard in shards]
        telling = self._tell_channels(RequestChannel.shards_lost, everything, generation)
        yield self._soon(rollouts)
        yield from self._until_told(telling)
        return f"{ray.get(rollouts)} rollouts"

    def _tell_channels(self, method: Callable[..., Any], *arguments: object) -> list[Any]:
        return [remote_method(channel, method).remote(*arguments) for channel in self._requests.values()]

    def _until_told(self, calls: Sequence[Any]) -> Generator[Wait, None, None]:
        """Wait for calls of all request channels."""
        for number, call in enumerate(calls):
            try:
                yield self._soon(call)
            except DEATHS:
                # `without_channel` decides about the other channels: the processes that such a channel would
                # tell are lost with it.
                if not number:
                    raise

    def without_channel(self, rank: int, died: BaseException) -> Revival:
        """Go on without request channel `rank`, after its error `died`, if its node is lost.

        Raises:
            RayActorError: the node lives, and its env workers have no channel any more; or it is the driver's
                node.
        """
        (node, channel), name = (
            list(self._requests.items())[rank],
            PROCESS_OF_GROUP["requests"].numbered(rank),
        )
        self._away.add(("requests", rank))
        give_up = time.monotonic() + self._advanced.start_s
        # Ray notices the loss of a node later than that of its processes. If the node lives, its env workers
        # end the run meanwhile, as no process receives their requests.
        while not is_lost(node):
            call = channel.place.remote()
            try:
                yield self._soon(call)
            except DEATHS as error:
                lives = isinstance(error, ray.exceptions.ActorUnavailableError)
                if time.monotonic() > give_up or (rank == 0 and not lives):
                    raise died from None
                yield Wait(seconds=START_POLL_S)
            else:
                self._away.discard(("requests", rank))  # only the connection was lost
                return channel.stay.remote()
        self._say(f"{name} is given up, as its node is lost ({lost_nodes()})")
        self._record(name, "node lost", death_in_words(died), "given up")
        return None

    def _bring_back(self, member: Member, name: str) -> Generator[Wait, None, Any]:
        """Wait until Ray has started the process, and have it join the run; returns its loop."""
        group, rank = member
        actor = self._fleet.actors(group)[rank]
        yield from self._wait_for_start(member, actor)
        join = actor.join_run.remote(
            name,
            str(self._run_dir),
            clock=self._coordinator,
            generation=self._generations[member],
        )
        # The process joins before it is built, so that faults while building are recorded.
        yield self._soon(join)
        if (limiting := self._limit(group, rank, actor)) is not None:
            yield self._soon(limiting)
        yield self._soon(remote_method(actor, self._rebuild[group]).remote())
        # The process that has joined may have died since, and its successor would receive the call.
        return remote_method(actor, RunProcess.go_on_as).remote(
            self._generations[member],
            LOOP_METHODS[group].__name__,
            self._settings,
            self._requests,
            self._coordinator,
        )

    def _bring_back_somewhere(self, member: Member, name: str) -> Generator[Wait, None, Any]:
        """`_bring_back`, on another node if its own is lost; returns None if the process is given up.

        Raises:
            RuntimeError: there is no other node, and the run cannot go on without the process.
        """
        while True:
            try:
                return (yield from self._bring_back(member, name))
            except ray.exceptions.ActorUnschedulableError as nowhere:
                if not self._move(member, name):
                    self._give_up(member, name, nowhere)
                    return None

    def _move(self, member: Member, name: str) -> bool:
        """Start the process of `member` on another node; return False if there is none."""
        group, rank = member
        elsewhere = self._elsewhere.get(group)
        if elsewhere is None or (successor := elsewhere(rank)) is None:
            return False
        actor, self._new_nodes[member] = successor
        self._fleet.replace(group, rank, actor)
        self._places.pop(member, None)  # process numbers are per node
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
                yield Wait(seconds=START_POLL_S)  # Ray is about to restart it
                continue
            if place != before:
                self._places[member] = place
                return
            # The old process lives: only the connection was lost. It counts as dead, so it must be killed.
            self._end(member)
            yield Wait(seconds=START_POLL_S)

    def _soon(self, *calls: object) -> Wait:
        return Wait(calls=calls, seconds=self._advanced.start_s)

    def _end(self, member: Member) -> None:
        """Kill a process, and have Ray restart it."""
        group, rank = member
        # `no_restart=False`: Ray restarts it behind the same handle, without a limit; the budget is kept
        # here.
        ray.kill(self._fleet.actors(group)[rank], no_restart=False)
        self._kill(member)

    def _kill(self, member: Member) -> None:
        """Kill a process of this machine, even a stopped one."""
        node, number = self._places.get(member, ("", 0))
        if node == machine():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
