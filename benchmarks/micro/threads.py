"""The wire beside many threads: how long a write and an `unseal` take, and how long they compute."""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.ray_runtime.processes.run_process import hand_over_quickly
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.payloads import seal, sealed, unseal
from rlinf_async.wire.shown_memory import ShownMemory

PICTURE_PIXELS = 64
MEASURED_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """`threads` threads that each compute in Python for `python_s` about every `step_s` seconds."""

    threads: int
    step_s: float = 0.1
    python_s: float = 0.0
    pause_s: float = 0.005
    """The pause of the event loop between two measurements."""


CASES = {
    "no other thread, without pauses": Case(threads=0, pause_s=0.0),
    "no other thread": Case(threads=0),
    "64 threads, 1 ms of Python every 0.3 s": Case(threads=64, step_s=0.3, python_s=0.001),
    "64 threads, 1 ms of Python every 0.1 s": Case(threads=64, step_s=0.1, python_s=0.001),
}


def _simulate(case: Case, ended: threading.Event) -> None:
    while not ended.wait(case.step_s * random.uniform(0.5, 1.5)):
        until = time.thread_time() + case.python_s
        while time.thread_time() < until:
            sum(range(50))


async def _measure(operations: dict[str, Callable[[], object]], pause_s: float) -> dict[str, float]:
    """Return, for each operation, the mean microseconds that it took, that its thread computed, and that it
    waited after the thread gave up its core by itself. Nothing in an operation waits but for the interpreter.
    """
    spent: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in operations}
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < MEASURED_S:
        for name, operation in operations.items():
            switches, wall, own = _own_switches(), time.perf_counter(), time.thread_time()
            operation()
            took, computed = time.perf_counter() - wall, time.thread_time() - own
            spent[name].append((took, computed, _own_switches() > switches))
        await asyncio.sleep(pause_s)
    found = {"cores": (time.process_time() - cpu) / (time.perf_counter() - began)}
    for name, seconds in spent.items():
        found[f"{name}_us"] = 1e6 * statistics.mean(took for took, _, _ in seconds)
        found[f"{name}_median_us"] = 1e6 * statistics.median(took for took, _, _ in seconds)
        found[f"{name}_cpu_us"] = 1e6 * statistics.mean(computed for _, computed, _ in seconds)
        waits = (took - computed for took, computed, switched in seconds if switched)
        found[f"{name}_interpreter_wait_us"] = 1e6 * sum(waits) / len(seconds)
        found[f"{name}_waiting_share"] = sum(switched for *_, switched in seconds) / len(seconds)
    return found


def _own_switches() -> int:
    """The number of times that this thread has given up its core by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


async def _observe(case: Case) -> dict[str, float]:
    observation = {"main": torch.zeros(1, PICTURE_PIXELS, PICTURE_PIXELS, 3, dtype=torch.uint8)}
    answer, memory = seal({"actions": torch.zeros(1, 4), "version": 0}), ShownMemory(Listening.ASKED_WITH)

    def write() -> None:
        with sealed(observation, memory):
            pass

    ended = threading.Event()
    threads = [threading.Thread(target=_simulate, args=(case, ended)) for _ in range(case.threads)]
    for thread in threads:
        thread.start()
    found = await _measure({"write": write, "unseal": lambda: unseal(answer)}, case.pause_s)
    ended.set()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Measure all cases by turns; every round is kept."""
    hand_over_quickly()
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, case in CASES.items():
            seen[name].append({what: round(value, 2) for what, value in asyncio.run(_observe(case)).items()})
    return {"rounds": rounds, "cases": seen}
