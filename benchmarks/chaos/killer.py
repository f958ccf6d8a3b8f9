"""A thread that kills a process of a run again and again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.chaos.victims import VICTIM_KINDS, Victim, step_of, victims

LOOK_S = 0.5


class Killer(threading.Thread):
    """Sends SIGKILL to a process of the run every `every_s`, once `first_step` is trained, until `stop`.

    The kind is drawn first, then one of that kind, so that simulators, of which there are most, are not the
    only ones.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        every_s: float,
        first_step: int,
        seed: int,
        kinds: Sequence[str] = tuple(VICTIM_KINDS),
        on_kill: Callable[[Victim], None] = lambda victim: None,
    ) -> None:
        """`kinds` are words of `VICTIM_KINDS`; `on_kill` is called in this thread after each."""
        super().__init__(daemon=True)
        self._run_dir, self._every_s, self._first_step = run_dir, every_s, first_step
        self._kinds, self._on_kill = kinds, on_kill
        self._draw = random.Random(seed)
        self._stopped = threading.Event()
        self.killed: list[Victim] = []

    def run(self) -> None:
        while step_of(self._run_dir) < self._first_step:
            if self._stopped.wait(LOOK_S):
                return
        while not self._stopped.wait(self._every_s):
            self._kill_one()

    def stop(self) -> None:
        """Stop killing; return once no more process will be killed."""
        self._stopped.set()
        self.join()

    def _kill_one(self) -> None:
        kind = VICTIM_KINDS[self._draw.choice(self._kinds)]
        candidates = [victim for victim in victims(self._run_dir) if victim.kind == kind]
        if not candidates:
            return  # all of them are away, being started again
        victim = self._draw.choice(candidates)
        if not victim.kill():
            return
        self.killed.append(victim)
        self._on_kill(victim)
