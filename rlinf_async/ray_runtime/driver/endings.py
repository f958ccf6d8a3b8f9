"""The end of a run on Ray, by success or failure: it is recorded, and leaves no process behind.

Ray's errors are translated into sentences: which process ended, why, and what to do next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

import ray

from rlinf_async.core.failures import ORDER_PASSED, DeadlineError, PeerError, in_words, origin_of
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.ending import ending_of, full_disk, recorded, short, undisturbed
from rlinf_async.observe.events import Ending
from rlinf_async.observe.state import RunState
from rlinf_async.ray_runtime.cluster.environment import logs_of_ray
from rlinf_async.ray_runtime.cluster.ray_processes import (
    DeadProcess,
    RayDied,
    dead_process,
    leaving_nothing_of_a_dead_ray,
)
from rlinf_async.ray_runtime.cluster.starting import RayNotJoined, RayNotStarted, RayNotThere
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.driver.launched_run import LaunchedRun
from rlinf_async.ray_runtime.driver.revivals import PROCESS_OF_GROUP
from rlinf_async.termination import TERMINATION

DRAIN_TIMEOUT_S = 4.0
"""Seconds that an interrupted run waits for the rollouts under way, before it ends their processes."""
LEDGER_TIMEOUT_S = 3.0
"""Seconds that a failed run waits for its ledger; after that it uses the last ledger that it has read."""


class Tell(Protocol):
    """Returns an ending with more words."""

    def __call__(self, ending: Ending, error: BaseException, *, again: str) -> Ending: ...


class EndingInOrder:
    """Ends a run, and writes its summary into the run directory.

    The driver keeps the last ledger that it has read in `state`: the coordinator, which holds the ledger, may
    be the process that dies.
    """

    def __init__(
        self, fleet: Fleet, run: LaunchedRun, *, state: RunState, display: RunDisplay, told: Tell
    ) -> None:
        """`told` returns an ending with more words, given its error and the words for starting again."""
        self._state, self._told = state, told
        self._fleet, self._run, self._display = fleet, run, display
        self.saved: int | None = run.step if run.checkpoint is not None else None
        """The step of the newest checkpoint that this run could be resumed from."""

    @contextmanager
    def __call__(self, loops: Callable[[], Sequence[Any]]) -> Iterator[None]:
        """A block that records an error that ends it, and then ends all processes of the run.

        On an interrupt the env workers' `loops` first have `DRAIN_TIMEOUT_S` to end by themselves.

        Raises:
            RunFailed: the run has ended by an error; the message is one sentence.
            KeyboardInterrupt, Terminated: the run was asked to end.
        """
        success = False
        try:
            with recorded(lambda: self._run.run_dir, judge=self._judge, state=self._last_state):
                try:
                    with TERMINATION.through_ray():
                        yield
                    success = True
                except KeyboardInterrupt:
                    self._display.stop()
                    self._drain(loops())
                    raise
        finally:
            if not success:
                TERMINATION.ignore_failures()
                # A second signal must not interrupt the killing: processes would be left over.
                with undisturbed(), leaving_nothing_of_a_dead_ray():
                    self._display.stop()
                    self._fleet.kill()

    def _drain(self, loops: Sequence[Any]) -> None:
        if not loops or not ray.is_initialized():
            return
        self._display.note("interrupted: closing the gate, waiting for rollouts that have started")
        self._run.coordinator.close_gate.remote()
        # Not by `Fleet.wait`, which would raise failures of watched calls, and so end the drain.
        in_order = self._fleet.ended(loops, DRAIN_TIMEOUT_S)
        self._display.note("all rollouts have ended" if in_order else "ending rollouts that still run")

    def _judge(self, error: BaseException) -> Ending:
        if is_echo(error) and ray.is_initialized() and dead_process() is None:
            # The cause may be a death that no wait of the driver has seen yet.
            error = next(iter(self._fleet.deaths()), error)
        again = self._how_to_restart()
        ending = ray_ending_of(error, names=self._fleet.names(PROCESS_OF_GROUP), again=again)
        return self._told(ending, error, again=again)

    def _how_to_restart(self) -> str:
        if self.saved is None or not self._run.resume:
            return START_AGAIN
        return f"{START_AGAIN} with {self._run.resume}, which goes on from step {self.saved}"

    def _last_state(self) -> RunState:
        if ray.is_initialized():
            # If the coordinator has died, the last ledger that was read is used.
            with suppress(ray.exceptions.RayError):
                ledger = self._run.coordinator.read_ledger.remote()
                self._state.ledger = ray.get(ledger, timeout=LEDGER_TIMEOUT_S)
        return self._state


START_AGAIN = "start the run again"
DETAIL_PATTERN = re.compile(r"^\s*(?P<name>pid|ip|class_name): (?P<value>\S+)$", re.MULTILINE)
EXIT_PATTERN = re.compile(r"Worker exit type: (?P<kind>\w+) Worker exit detail: (?P<detail>[^\n]*)")
CALL_PATTERN = re.compile(r"\(pid=(?P<pid>\d+), ip=(?P<ip>[^,)]+)(?:, actor_id=(?P<actor>\w+))?")
SILENT_EXIT_WORDS = "connection error code"
"""Words in Ray's message about a process that has ended without an exit status or an error."""
KILLED_SENTENCE = (
    "has died without an error message, as a process that is killed, for example for lack of memory"
)
TOKEN_REMEDY = "set RAY_AUTH_MODE=token if that cluster asks for a token, as one of `ray start` may"
THERE_REMEDY = "start that cluster, or name another one, or RAY_ADDRESS=local for one of the run's own"
NODE_LOST_WORDS = "its node has died"
OUT_OF_MEMORY_WORDS = ("low on memory", "OOM")
"""Words in Ray's message about a process that Ray has killed because memory was low."""

Names = Mapping[str, str]
"""The names of a run's processes in its records, by Ray's actor IDs."""


def ray_ending_of(error: BaseException, *, names: Names | None = None, again: str = START_AGAIN) -> Ending:
    """Return the ending that an exception in the driver of a run on Ray stands for; see
    `observe.ending.ending_of`.
    """
    names = names or {}
    if isinstance(error, RayNotStarted):
        return _not_started(error, again)
    if isinstance(error, RayNotThere):
        return _no_cluster(error, THERE_REMEDY, again)
    if isinstance(error, RayNotJoined):
        return _no_cluster(error, TOKEN_REMEDY, again)
    if isinstance(error, RayDied):
        return _ray_died(error.dead, again)
    of_worker = isinstance(error, ray.exceptions.RayTaskError)
    if isinstance(error, KeyboardInterrupt | SystemExit) and not of_worker:
        return ending_of(error, again=again)
    # A dead raylet makes all other processes look dead, or hang.
    of_ray = isinstance(error, ray.exceptions.RayError | ConnectionError | DeadlineError)
    if of_ray and (dead := dead_process(closely=True)) is not None:
        return _ray_died(dead, again)
    if isinstance(error, ray.exceptions.RayTaskError):
        return _worker_failed(error, names, again)
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, ray.exceptions.RayActorError):
        return _ended_by_a_death(error, cause, names, again)
    if isinstance(error, ray.exceptions.RayActorError):
        return _died(error, names, again)
    return ending_of(error, again=again)


def is_echo(error: BaseException) -> bool:
    """Return True if an error may follow from the death of a process that Ray has not reported yet."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return is_echo(error.cause)
    died = isinstance(error, ray.exceptions.ActorDiedError)
    return not died and isinstance(error, ray.exceptions.RayError | PeerError | DeadlineError)


def _worker_failed(error: ray.exceptions.RayTaskError, names: Names, restart: str) -> Ending:
    """The ending for an error in a worker, or in another process that the worker has called."""
    cause = error.cause
    if isinstance(cause, ray.exceptions.RayTaskError):
        return _worker_failed(cause, names, restart)
    if isinstance(cause, ray.exceptions.RayActorError):
        return _died(cause, names, restart)
    # Ray derives the error's class from that of its cause: only the text tells the process.
    place = CALL_PATTERN.search(str(error))
    process = names.get((place and place["actor"]) or "", "a worker")
    subject = f"{process} ({place['pid']} on {place['ip']})" if place else process
    if not isinstance(cause, BaseException):
        why = f"has met {short(in_words(error))}"
        return Ending(who=subject, why=why, what_next=f"fix that, and {restart}", process=process)
    ending = replace(ending_of(cause, again=restart), how="failed", who=subject, status=1, process=process)
    # A pickled error has lost its own cause; the traceback that Ray has printed still has it.
    if ORDER_PASSED.search(ending.why):
        ending = replace(ending, why=short(f"{ending.why} ({origin_of(error.traceback_str)})"))
    return ending


def _died(error: ray.exceptions.RayActorError, names: Names, restart: str) -> Ending:
    text = str(error)
    place = {match["name"]: match["value"] for match in DETAIL_PATTERN.finditer(text)}
    # A process that has not joined the run yet has no name.
    unnamed = f"a {place['class_name']}" if "class_name" in place else "a worker"
    process = names.get(str(error.actor_id), unnamed)
    where = " on ".join(place[name] for name in ("pid", "ip") if name in place)
    subject = f"{process} ({where})" if where else process
    why, remedy = KILLED_SENTENCE, _silent_death_remedy()
    # After these words Ray lists possible causes of any silent death, such as lack of memory.
    if any(words in text.partition("Some common causes")[0] for words in OUT_OF_MEMORY_WORDS):
        why, remedy = (
            "was killed by Ray for lack of memory on its node",
            "use fewer environments or processes",
        )
    elif NODE_LOST_WORDS in text:
        why, remedy = "was on a node that is lost", "look at that node and at the network"
    elif (exit_match := EXIT_PATTERN.search(text)) and SILENT_EXIT_WORDS not in exit_match["detail"]:
        why, remedy = f"has ended: {short(exit_match['detail'])}", "fix that"
    elif error.actor_init_failed:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        why, remedy = f"has failed while it was built: {short(lines[-1])}", "fix that"
    elif isinstance(error, ray.exceptions.ActorUnavailableError):
        why = "has ended, or cannot be reached any more, and Ray does not know more"
        remedy = f"{_silent_death_remedy()}; if it is on another node, at that node and at the network"
    return Ending(who=subject, why=why, what_next=f"{remedy}, and {restart}", process=process)


def _silent_death_remedy() -> str:
    return (
        "code of its packages may have ended it (os._exit, a crash of native code), or the system for lack "
        f"of memory: look in Ray's logs ({logs_of_ray(os.environ)}) and in the kernel's log (dmesg)"
    )


def _ended_by_a_death(
    error: RuntimeError, cause: ray.exceptions.RayActorError, names: Names, restart: str
) -> Ending:
    """The ending for an error of `Revivals` about the death `cause` of a process."""
    ending = _died(cause, names, restart)
    why = short(str(error).removeprefix(f"{ending.process} "))
    if isinstance(cause, ray.exceptions.ActorUnavailableError):
        # Ray starts the process again, and does not say how it has ended.
        ending = replace(ending, what_next=f"{_silent_death_remedy()}, and {restart}")
    return replace(ending, why=why)


def _ray_died(dead: DeadProcess, restart: str) -> Ending:
    logs = f"see why in {dead.logs}, and " if dead.logs is not None else "start the cluster anew, and "
    subject, _, why = str(dead).partition(" has ")
    return Ending(who=subject, why=f"has {why}", what_next=f"{logs}{restart}", process=dead.name)


def _not_started(error: RayNotStarted, restart: str) -> Ending:
    cause = error.__cause__
    place = full_disk(cause) if cause is not None else None
    remedy = (
        "make room there"
        if place
        else f"see why in {logs_of_ray(os.environ)}, and whether the machine has memory and cores left"
    )
    return _no_cluster(error, remedy, restart)


def _no_cluster(error: RayNotStarted | RayNotJoined | RayNotThere, remedy: str, restart: str) -> Ending:
    return Ending(who="Ray", why=str(error), what_next=f"{remedy}, and {restart}")
