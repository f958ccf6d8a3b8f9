"""CPU and wall seconds of a run of one step under RLinf, from the command to its end: starting is nearly all.
RLinf's own loop (`off`) and all levels (`full`) take turns.

Another checkout of this package, with an environment of its own, is measured by turns beside this one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.micro.kit import medians
from rlinf_async.lab.bench.cpu import INTERVAL_S, CpuMeter
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail

REPOSITORY_ROOT = Path(__file__).parents[2]
MARK_VARIABLE = "START_BENCHMARK"
TRAIN = ("-m", "rlinf_async.cli", "train", "bench/emulated", "runner.max_epochs=1", "runner.max_steps=1")
MODES = ("off", "full")
DEADLINE_S = 900.0


def measure(rounds: int, beside: Path | None) -> dict[str, dict[str, float]]:
    """Return the medians over `rounds`, by mode, of this checkout and of the one `beside` it.

    Raises:
        RuntimeError: a run failed; the message has the end of its output.
    """
    pythons = {"this checkout": (REPOSITORY_ROOT, sys.executable)}
    if beside is not None:
        pythons["beside"] = (beside, str(beside / ".venv/bin/python"))
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for turn, (name, (root, python)), mode in product(range(rounds), pythons.items(), MODES):
        command = [python, *TRAIN, f"async.mode={mode}"]
        found[f"{name}, {mode}"].append(_run(root, command, f"{name} {mode} {turn} {os.getpid()}"))
    return {name: medians(runs) for name, runs in found.items()}


def _run(root: Path, command: Sequence[str], mark: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, CpuMeter(f"{MARK_VARIABLE}={mark}") as meter:
        log = Path(folder) / "output.log"
        environment = {**OWN_CLUSTER, MARK_VARIABLE: mark, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        time.sleep(2 * INTERVAL_S)  # for a sample before the first process
        began = time.monotonic()
        status = run_command(
            [*command, f"runner.logger.log_path={folder}/run"],
            log,
            directory=root,
            environment=environment,
            deadline_s=DEADLINE_S,
        )
        ended = time.monotonic()
        time.sleep(2 * INTERVAL_S)
        if status:
            raise RuntimeError(f"the run in {root.name} ended with status {status}: {tail(log, 3000)}")
    usage = meter.between(began, ended)
    if usage is None:
        raise RuntimeError("there are no samples of CPU time around the run")
    return {"seconds": ended - began, "cpu_s": usage.run_s, "cores_of_others": usage.others}
