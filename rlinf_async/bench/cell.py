"""One run of one mode on one scenario, in processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.bench.cpu import CpuMeter
from rlinf_async.bench.measure import measure
from rlinf_async.bench.modes import MODES
from rlinf_async.bench.scenarios import SCENARIOS
from rlinf_async.core.spans import read_spans

DEADLINE_S = 600.0
TAIL = 2
"""Global steps that a run goes on after those that are measured: in its last ones nothing new is begun."""
RUN = "RLINF_ASYNC_BENCH_RUN"
"""The environment variable by which all processes of a run are known."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run: a scenario, a mode, and which repetition."""

    scenario: str
    mode: str
    repetition: int
    warm_up: int
    steps: int

    def run(self) -> dict[str, Any]:
        """The measurement as plain data, or `{"error": ...}` with the end of what the run printed."""
        directory = Path(tempfile.mkdtemp(prefix="rlinf-async-bench-"))
        try:
            # Ray's own processes inherit what marks a run's.
            meter = CpuMeter(f"{RUN}={directory.name}")
            with meter:
                status, output = self._start(directory)
            if status:
                return {"error": f"exit status {status}: {output[-2000:]}"}
            scenario, mode = SCENARIOS[self.scenario], MODES[self.mode]
            try:
                measured = measure(
                    read_spans(directory / "services"),
                    scenario,
                    mode,
                    warm_up=self.warm_up,
                    steps=self.steps,
                    cpu=meter,
                )
            except ValueError as error:
                return {"error": str(error)}
            return measured.as_dict()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _start(self, directory: Path) -> tuple[int, str]:
        mode = MODES[self.mode]
        scenario = SCENARIOS[self.scenario]
        command = [sys.executable, "-m", "rlinf_async.bench.run", mode.wiring, scenario.config]
        command += scenario.overrides(log=str(directory / "services")) + mode.overrides_for(scenario)
        command += [
            f"runner.max_epochs={self.warm_up + self.steps + TAIL}",
            f"runner.logger.log_path={directory / 'run'}",
            f"actor.seed={1000 + self.repetition}",
        ]
        # A cluster of its own, and no threads that compete with those that keep the time.
        environment = {
            **os.environ,
            "RAY_ADDRESS": "local",
            "OMP_NUM_THREADS": "1",
            RUN: directory.name,
        }
        with (directory / "output").open("w") as output:
            try:
                status = subprocess.run(
                    command,
                    env=environment,
                    cwd=directory,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=DEADLINE_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = 124
        return status, (directory / "output").read_text(errors="replace")
