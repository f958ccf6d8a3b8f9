"""A Ray cluster with a node on each machine, and a run of RLinf's host on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.nodes.machines import INTERFACE_NAME, Machine
from rlinf_async.lab.process import last_words

RAY_PORT = 6379
CORES_PER_NODE = 8
"""Cores that each node reports to Ray; Ray schedules by this number, whatever the machine has."""
OBJECT_STORE_BYTES = 200_000_000
OWN_ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "GLOO_SOCKET_IFNAME": INTERFACE_NAME}
LOOK_INTERVAL_S = 0.1
STEP_TIMEOUT_S = 240.0
"""Longest wait for a step; Ray gives up a dead node sooner."""


def start_cluster(machines: Sequence[Machine]) -> None:
    """Start Ray's head on the first machine, and then a node on each of the others.

    Raises:
        OSError: Ray has not started.
    """
    for number, machine in enumerate(machines):
        first = ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
        which = (f"--address={machines[0].address}:{RAY_PORT}",) if number else first
        machine.call(
            *(
                "env",
                f"RLINF_NODE_RANK={number}",
                *(f"{name}={value}" for name, value in OWN_ENVIRONMENT.items()),
            ),
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *which, "--disable-usage-stats"),
            *(f"--node-ip-address={machine.address}", f"--num-cpus={CORES_PER_NODE}"),
            f"--object-store-memory={OBJECT_STORE_BYTES}",
        )


class Run:
    """A run on the first machine; it ends when that machine is closed."""

    def __init__(self, machines: Sequence[Machine], directory: Path, settings: Sequence[str]) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.log = directory.with_suffix(".log")
        self._metrics = directory / "metrics.jsonl"
        address = {"RAY_ADDRESS": f"{machines[0].address}:{RAY_PORT}", "OMP_NUM_THREADS": "1"}
        with self.log.open("w") as log:
            self._process = machines[0].start(
                *(sys.executable, "-m", "rlinf_async.cli", "train", "--join", *settings),
                f"runner.logger.log_path={directory.resolve()}",
                env={**os.environ, **address, **OWN_ENVIRONMENT, "COLUMNS": "160"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def steps(self) -> int:
        """Number of reported steps."""
        return len(self._metrics.read_text().splitlines()) if self._metrics.exists() else 0

    def reach(self, steps: int, *, seen: Callable[[], Any] = lambda: None) -> None:
        """Wait until `steps` steps are reported; call `seen` whenever the number has grown.

        Raises:
            RuntimeError: the run has ended, or has reported no step for `STEP_TIMEOUT_S`.
        """
        before, since = self.steps, time.monotonic()
        while before < steps:
            if self._process.poll() is not None:
                raise RuntimeError(f"the run has ended: {last_words(self.log)}")
            if time.monotonic() - since > STEP_TIMEOUT_S:
                raise RuntimeError(f"no step for {STEP_TIMEOUT_S:g} s: {last_words(self.log)}")
            time.sleep(LOOK_INTERVAL_S)
            if self.steps > before:
                before, since = self.steps, time.monotonic()
                seen()
