"""The command `rlinf-async chaos`: kill processes of a run until it has ended, and tell what it outlived."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from rlinf_async.lab.chaos.killer import Killer
from rlinf_async.lab.chaos.victims import VICTIM_KINDS, Victim, processes
from rlinf_async.observe.failures import FailureReader, FaultCounts
from rlinf_async.observe.status import status_facts

FIRST_STEP = 1
"""Before, a death is a mistake of the set-up, and ends a run."""
LOOK_S = 2.0


def check(run: Path, kinds: Sequence[str]) -> None:
    """Check that there is a process to kill.

    Raises:
        ValueError: there is no such run, it has ended, it is on other machines, or a kind is unknown.
    """
    if unknown := [kind for kind in kinds if kind not in VICTIM_KINDS]:
        raise ValueError(f"--kinds {', '.join(unknown)}: there are {', '.join(VICTIM_KINDS)}")
    facts = status_facts(run)
    if facts["state"] == "ended":
        raise ValueError(f"the run in {run} has ended; chaos is for one that goes on")
    if facts["state"] == "silent":
        age = f"{facts['seen_s']:.0f} s"
        raise ValueError(f"the run in {run} has said nothing for {age}: it has died, or hangs")
    if not processes(run):
        raise ValueError(f"no process of the run in {run} is on this machine, or none has answered yet")


def chaos(
    run: Path,
    console: Console,
    *,
    every_s: float,
    kinds: Sequence[str],
    seed: int = 0,
    wait: Callable[[float], object] = time.sleep,
) -> bool:
    """Kill somebody every `every_s` until the run has ended, or an interrupt; whether it is at work then.

    Raises:
        ValueError: as `check` does.
    """
    check(run, kinds)

    def say(victim: Victim) -> None:
        name = f"a {victim.kind} {victim.name}" if victim.name.startswith("of ") else victim.name
        console.print(f"{time.strftime('%H:%M:%S')} killed {name} (pid {victim.pid})", markup=False)

    faults = FailureReader(run)
    killer = Killer(run, every_s=every_s, first_step=FIRST_STEP, seed=seed, kinds=kinds, on_kill=say)
    killer.start()
    try:
        while (state := status_facts(run)["state"]) in ("moving", "still"):
            wait(LOOK_S)
    except KeyboardInterrupt:
        state = status_facts(run)["state"]
    finally:
        killer.stop()
    for line in _told(state, killer.killed, FaultCounts.of(faults.new())):
        console.print(line, markup=False, soft_wrap=True)
    return state != "silent"


def _told(state: str, killed: Sequence[Victim], faults: FaultCounts) -> list[str]:
    kinds = Counter(victim.kind for victim in killed)
    kills = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nobody"
    states = {"ended": "has ended", "silent": "says nothing any more"}
    return [
        f"killed: {kills}; the run {states.get(state, 'goes on')}",
        f"in its records since then: {faults if faults.kinds else 'no fault'} (failures.jsonl)",
    ]
