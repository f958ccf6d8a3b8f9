"""Real runs: the command line in a process of its own, on a real Ray cluster with RLinf's real workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlinf_async.simulators.camera import installed_backend

COMMAND = [sys.executable, "-m", "rlinf_async.cli"]
SMALL = (
    "~warm_start",
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=4",
    "env.train.action_repeat=1",
    "actor.micro_batch_size=8",
    "actor.global_batch_size=16",
    "algorithm.update_epoch=2",
    "runner.max_epochs=3",
)
"""Eight environments, four decisions: 32 samples a step, two optimizer steps of two micro-batches."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    status: int
    output: str
    directory: Path

    @property
    def metrics(self) -> list[dict[str, float]]:
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())


def _heed_interrupts() -> None:
    # A shell lets the jobs in its background ignore interrupts, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Runner:
    """Starts runs in a directory of the test's own, and leaves no process behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "RAY_ADDRESS": "local",
            "OMP_NUM_THREADS": "1",
            "HYDRA_FULL_ERROR": "1",
            "COLUMNS": "160",
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        self._started.append(process)
        return process

    def start_module(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """A module of these tests."""
        self.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        return self.start(sys.executable, "-m", name, *arguments)

    def train(self, config: str, *overrides: str, run_dir: str = "run", small: bool = True) -> Run:
        """`rlinf-async train` to its end."""
        directory = self.directory / run_dir
        place = f"runner.logger.log_path={directory}"
        process = self.start(
            *COMMAND, "train", "--config-name", config, *(SMALL if small else ()), place, *overrides
        )
        output, _ = process.communicate(timeout=300)
        return Run(process.returncode, output, directory)

    def several(self, cases: Sequence[tuple[str, Sequence[str]]]) -> list[Run]:
        """Small runs of `(config, overrides)`, one after the other in one process."""
        directories = [self.directory / f"run-{number}" for number in range(len(cases))]
        given = [
            (config, [*SMALL, *overrides, f"runner.logger.log_path={directory}"])
            for (config, overrides), directory in zip(cases, directories, strict=True)
        ]
        file = self.directory / "several.json"
        file.write_text(json.dumps(given))
        process = self.start_module("tests.runs.several", str(file))
        output, _ = process.communicate(timeout=840)
        return [_part(output, number, directory) for number, directory in enumerate(directories)]

    def survivors(self, process: subprocess.Popen[str]) -> list[str]:
        """Processes of the session that `process` has led, as ps shows them."""
        shown = subprocess.run(
            ["ps", "-s", str(process.pid), "-o", "pid=,stat=,args="],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        return [line for line in shown.splitlines() if line.strip() and " Z" not in line]

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _part(output: str, number: int, directory: Path) -> Run:
    """What concerns one of several runs; everything if the process did not come so far."""
    mine = re.search(rf"RUN {number} BEGINS\n(.*?)RUN {number} ENDS WITH (\d)", output, re.DOTALL)
    if mine is None:
        return Run(1, output, directory)
    return Run(int(mine[2]), mine[1], directory)


@pytest.fixture
def runs(tmp_path: Path):
    runner = Runner(tmp_path)
    yield runner
    runner.close()


@pytest.fixture
def gl() -> str:
    """An OpenGL back end that renders without a screen here."""
    found = installed_backend()
    if found is None:
        pytest.skip("no EGL or OSMesa library")
    return found
