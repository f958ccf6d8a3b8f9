"""One run of one mode on one scenario, in processes of its own."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.lab.bench.cpu import CpuMeter
from rlinf_async.lab.bench.measure import Measurement, measure
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.observe.reading.spans import read_spans

DEADLINE_S = 600.0
TAIL_STEPS = 2
"""Global steps after the measured ones: no new rollout begins in the last steps of a run."""
RUN_VARIABLE = "RLINF_ASYNC_BENCH_RUN"
"""The environment variable that marks all processes of a run."""


@dataclass(frozen=True, kw_only=True)
class BenchCell:
    """One run: a scenario, a mode of a host, and the number of the repetition."""

    scenario: str
    mode: str
    repetition: int
    warm_up: int
    steps: int
    host: str = "rlinf"

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.mode} #{self.repetition + 1}"

    def run(self) -> dict[str, Any]:
        """Run, and return the measurement as plain data, or `{"error": ...}` with the end of the output."""
        directory = Path(tempfile.mkdtemp(prefix="rlinf-async-bench-"))
        try:
            return self.measured_in(directory).as_dict()
        except ValueError as error:
            return {"error": str(error)}
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def measured_in(self, directory: Path) -> Measurement:
        """Run with the empty folder `directory` for its output; the run directory is `run` in it.

        Raises:
            ValueError: the run failed (the message has the end of its output), or was not steady.
        """
        scenario, mode = SCENARIOS_BY_NAME[self.scenario], SIDES_BY_HOST[self.host].modes[self.mode]
        log = directory / "output"
        # Ray's own processes inherit the mark.
        with CpuMeter(f"{RUN_VARIABLE}={directory.name}") as meter:
            status = run_command(
                self._command(directory),
                log,
                directory=directory,
                environment={**OWN_CLUSTER, RUN_VARIABLE: directory.name},
                deadline_s=DEADLINE_S,
            )
        if status:
            raise ValueError(f"exit status {status}: {tail(log)}")
        records = read_spans(directory / "services")
        return measure(records, scenario, mode, warm_up=self.warm_up, steps=self.steps, cpu=meter)

    def _command(self, directory: Path) -> list[str]:
        scenario, side = SCENARIOS_BY_NAME[self.scenario], SIDES_BY_HOST[self.host]
        mode, steps = side.modes[self.mode], self.warm_up + self.steps + TAIL_STEPS
        return [
            *(sys.executable, "-m", "rlinf_async.lab.bench.run", mode.wiring, side.config(scenario)),
            *side.overrides(scenario, mode, log=str(directory / "services")),
            *side.run(directory=directory / "run", steps=steps, seed=1000 + self.repetition),
        ]
