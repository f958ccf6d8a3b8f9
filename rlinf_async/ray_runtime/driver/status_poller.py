"""The driver's view of a run while it waits: written to `status.json`, and printed when nothing moves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import ray

from rlinf_async.observe.events import Status
from rlinf_async.observe.holdings import held_by_this_process
from rlinf_async.observe.pace import seconds
from rlinf_async.observe.reading.status import progress_of, who_does_what
from rlinf_async.observe.resources import ResourceLog
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import Process
from rlinf_async.wire.memory import machine

POLL_INTERVAL_S = 5.0
"""The longest time between two polls of the workers."""
ANSWER_TIMEOUT_S = 2.0
"""A worker that has not answered after this time counts as silent in this poll."""

ProcessAnswers = Mapping[str, Mapping[str, Any] | None]


class Guard(Protocol):
    """Decides about workers that fall silent."""

    def watches(self, process: str) -> bool:
        """Return True if the process of that name has to answer calls now."""

    def silence(self, process: str) -> None:
        """Act on a process that has not answered in time."""

    def death(self, process: str, question: Any) -> None:
        """Act on a process that has died; `question` is a call of it, which failed for that reason."""


class StatusPoller:
    """Asks all workers for their activity, without waiting for them, and writes `status.json`.

    When no span of any process has ended for `stall_s` seconds, it prints what each process waits for, and
    again whenever the time has doubled. It tells `guard` of each worker that `guard` watches and that does
    not answer for `silent_s` seconds.
    """

    def __init__(
        self,
        actors: Callable[[], Mapping[str, Any]],
        run_dir: RunDir,
        *,
        stall_s: float,
        silent_s: float,
        guard: Guard,
        say: Callable[[str], None],
        step: Callable[[], tuple[int, int]],
        look: Callable[[ProcessAnswers], None] = lambda answers: None,
    ) -> None:
        """`actors` returns the present handles by process name; `step` returns the present and the last
        step; `look` receives the answers of each poll, with None for silent processes.
        """
        self._actors = actors
        self._run_dir = run_dir
        self._resources = ResourceLog(run_dir.path, say=say)
        self._stall_s = stall_s
        self._silent_s, self._guard = silent_s, guard
        self._unheard: dict[str, tuple[Any, float]] = {}
        """Workers that do not answer: the oldest call that each has not answered, and when it was made."""
        self._every_s = min(POLL_INTERVAL_S, stall_s / 2, silent_s / 2)
        self._say = say
        self._step, self._look_at = step, look
        self._questions: dict[Any, str] = {}
        self._asked_at = 0.0
        self._progress: dict[str, int] = {}
        self._moved_at = time.monotonic()
        self._next_notice_s = stall_s

    def poll(self) -> float:
        """Ask the workers, or collect their answers, if due; return the seconds until the next call is
        due.
        """
        now = time.monotonic()
        if self._questions:
            # `timeout=0`: the driver's wait calls this, and must not wait for a silent worker.
            replies, late = ray.wait(list(self._questions), num_returns=len(self._questions), timeout=0)
            if late and now - self._asked_at < ANSWER_TIMEOUT_S:
                return 0.2
            self._notice_silence(late, now)
            self._look(self._answers(replies))
        if now - self._asked_at >= self._every_s:
            # Workers answer on their event loops, so that a worker with a blocked loop counts as silent.
            self._questions = {actor.doing.remote(): name for name, actor in self._actors().items()}
            self._asked_at = now
            return 0.2
        return self._every_s - (now - self._asked_at)

    def _answers(self, references: list[Any]) -> ProcessAnswers:
        answers: dict[str, Any] = dict.fromkeys(self._questions.values())
        for reference in references:
            name = self._questions[reference]
            try:
                answers[name] = ray.get(reference)
            # The driver may wait only for calls of other processes, which do not raise this death.
            except ray.exceptions.ActorDiedError:
                self._guard.death(name, reference)
            except ray.exceptions.RayError:
                continue  # it may be out of reach for a moment
        self._questions = {}
        return answers

    def _look(self, answers: ProcessAnswers) -> None:
        now, progress = time.monotonic(), progress_of(answers)
        # Unequal, not larger: a restarted process counts from 0.
        if any(self._progress.get(name) != end for name, end in progress.items()):
            self._moved_at, self._next_notice_s = now, self._stall_s
        self._progress |= progress
        still_s = now - self._moved_at
        self._write(answers, still_s)
        self._look_at(answers)
        if still_s >= self._next_notice_s:
            self._next_notice_s = 2 * still_s
            lines = [f"  {name}: {line}" for name, line in who_does_what(answers)]
            self._say("\n".join([f"no activity has ended for {seconds(still_s)}:", *lines]))

    def _notice_silence(self, late: list[Any], now: float) -> None:
        """Tell the guard of workers that have not answered for too long; a late answer counts."""
        unheard = {}
        for name, question in ((self._questions[question], question) for question in late):
            if not self._guard.watches(name):
                continue
            owed, since = self._unheard.get(name, (question, self._asked_at))
            # The oldest call is kept until it is answered: each poll makes a new call, and a slow worker may
            # always answer one poll late.
            if ray.wait([owed], num_returns=1, timeout=0)[0]:
                owed, since = question, self._asked_at
            unheard[name] = owed, since
            if now - since >= self._silent_s:
                del unheard[name]
                self._guard.silence(name)
        self._unheard = unheard

    def _write(self, answers: ProcessAnswers, still_s: float) -> None:
        step, total = self._step()
        # `children=False`: the driver's children are Ray and all other processes of the run.
        own = {str(Process.DRIVER): held_by_this_process(children=False)}
        others = {name: answer["holds"] for name, answer in answers.items() if answer and "holds" in answer}
        self._run_dir.write_status(
            Status(
                time=time.time(),
                machine=machine(),
                driver=os.getpid(),
                step=step,
                total=total,
                still_s=round(still_s, 3),
                processes=dict(answers),
                **self._resources.look(time.monotonic(), {**own, **others}),
            )
        )
