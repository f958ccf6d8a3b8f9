"""A Ray cluster with a node on each machine, and a run of RLinf's host on it, watched step by step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.nodes.machines import INTERFACE, Machine
from rlinf_async.lab.process import last_words

PORT = 6379
CORES = 8
"""That each node claims to have; Ray only counts with them."""
STORE_BYTES = 200_000_000
OURS = {"RAY_AUTH_MODE": "disabled", "GLOO_SOCKET_IFNAME": INTERFACE}
LOOK_S = 0.1
STEP_TIMEOUT_S = 240.0
"""More than Ray takes to miss a node."""


def start_cluster(machines: Sequence[Machine]) -> None:
    """Start Ray on the first machine, and then on the others.

    Raises:
        OSError: it has not started.
    """
    for number, machine in enumerate(machines):
        first = ("--head", f"--port={PORT}", "--include-dashboard=false")
        which = (f"--address={machines[0].address}:{PORT}",) if number else first
        machine.call(
            *("env", f"RLINF_NODE_RANK={number}", *(f"{name}={value}" for name, value in OURS.items())),
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *which, "--disable-usage-stats"),
            *(f"--node-ip-address={machine.address}", f"--num-cpus={CORES}"),
            f"--object-store-memory={STORE_BYTES}",
        )


class Run:
    """A run that was started on the first machine, and ends with it."""

    def __init__(self, machines: Sequence[Machine], directory: Path, settings: Sequence[str]) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.log = directory.with_suffix(".log")
        self._metrics = directory / "metrics.jsonl"
        address = {"RAY_ADDRESS": f"{machines[0].address}:{PORT}", "OMP_NUM_THREADS": "1"}
        with self.log.open("w") as log:
            self._process = machines[0].start(
                *(sys.executable, "-m", "rlinf_async.cli", "train", "--join", *settings),
                f"runner.logger.log_path={directory.resolve()}",
                env={**os.environ, **address, **OURS, "COLUMNS": "160"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def steps(self) -> int:
        """Steps that have been reported."""
        return len(self._metrics.read_text().splitlines()) if self._metrics.exists() else 0

    def reach(self, steps: int, *, seen: Callable[[], Any] = lambda: None) -> None:
        """Wait until so many steps are reported; `seen` is called whenever there are more than before.

        Raises:
            RuntimeError: the run has ended, or has not gone on for four minutes.
        """
        before, since = self.steps, time.monotonic()
        while before < steps:
            if self._process.poll() is not None:
                raise RuntimeError(f"the run has ended: {last_words(self.log)}")
            if time.monotonic() - since > STEP_TIMEOUT_S:
                raise RuntimeError(f"no step for {STEP_TIMEOUT_S:g} s: {last_words(self.log)}")
            time.sleep(LOOK_S)
            if self.steps > before:
                before, since = self.steps, time.monotonic()
                seen()
