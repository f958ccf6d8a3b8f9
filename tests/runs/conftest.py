"""Real runs: the command line in a process of its own, on a real Ray cluster with RLinf's real workers.

Starting Ray and importing RLinf and torch in ten processes takes far longer than a small run. A test that
does not care whether its run has a process of its own asks for it by `pytest.mark.shared_run`: the runs of
all such tests that are selected are made one after the other, in one process and one cluster, and a run
that several tests ask for is made once. `{run-0}` in an override is the directory of the test's first run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf_async.lab.demo.simulators.camera import installed_backend
from tests.runs.several import BEGINS, ENDS

ROOT = Path(__file__).parents[2]
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

LAST_MOMENTS_S = 10.0
"""Until a process that was told to end has ended, on a machine that is shared."""

Case = tuple[str, tuple[str, ...]]
"""The name of a config, and overrides."""
EARLIER = re.compile(r"{run-(\d+)}")
"""The directory of an earlier run, in an override."""


def small(config: str, *overrides: str) -> Case:
    return config, (*SMALL, *overrides)


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


def timeless(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    """What two runs with a fixed lag have in common: all but times and what depends on them."""
    clocks = ("async/busy/", "async/busiest/", "async/batch/wait_s/", "async/step_seconds")
    # Batches are counted when a step is reported, and by then some of the next step have been answered.
    clocks = (*clocks, "async/env_steps_per_second", "async/batch/size", "async/publication", "async/waiting")
    clocks = (*clocks, "async/load/")
    return [{k: v for k, v in line.items() if not k.startswith(clocks)} for line in metrics]


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
        self._path = [str(ROOT)]
        self._started: list[subprocess.Popen[str]] = []

    def declare(self, group: str, name: str, value: str) -> None:
        """Have the runs find an entry point of a third package; `value` is a class of these tests."""
        info = self.directory / "site" / "throwaway-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: throwaway\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        self._path.append(str(info.parent))
        self.environment["PYTHONPATH"] = os.pathsep.join(self._path)

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
        self.environment["PYTHONPATH"] = os.pathsep.join(self._path)
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

    def several(self, cases: Sequence[Case]) -> list[Run]:
        """Runs of `cases`, one after the other in one process."""
        directories = [self.directory / f"run-{number}" for number in range(len(cases))]

        def directory_of(match: re.Match[str]) -> str:
            return str(directories[int(match[1])])

        given = [
            (
                config,
                [*(EARLIER.sub(directory_of, o) for o in overrides), f"runner.logger.log_path={directory}"],
            )
            for (config, overrides), directory in zip(cases, directories, strict=True)
        ]
        file = self.directory / "several.json"
        file.write_text(json.dumps(given))
        process = self.start_module("tests.runs.several", str(file))
        output, _ = process.communicate(timeout=deadline_s(len(cases)))
        assert self.survivors(process) == [], output
        return [part(output, number, directory) for number, directory in enumerate(directories)]

    def survivors(self, process: subprocess.Popen[str]) -> list[str]:
        """Processes of the session that `process` has led, as ps shows them, but for those that are ending.

        Ray has told some of them to end when the run itself has ended, and they are a moment later.
        """
        numbers = {int(line.split()[0]) for line in self._session(process)}
        left = [each for each in psutil.process_iter() if each.pid in numbers]
        psutil.wait_procs(left, timeout=LAST_MOMENTS_S)
        return self._session(process)

    def _session(self, process: subprocess.Popen[str]) -> list[str]:
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


def deadline_s(runs: int) -> int:
    """How long that many small runs in one process may take, on a machine that is shared."""
    return 120 + 90 * runs


def part(output: str, number: int, directory: Path) -> Run:
    """What concerns one of several runs; everything if the process did not come so far."""
    begins, ends = (line.format(number, r"(\d)") for line in (BEGINS, ENDS))
    mine = re.search(rf"{begins}\n(.*?){ends}", output, re.DOTALL)
    if mine is None:
        return Run(1, output, directory)
    return Run(int(mine[2]), mine[1], directory)


@pytest.fixture
def runs(tmp_path: Path):
    runner = Runner(tmp_path)
    yield runner
    runner.close()


def _asked_for(items: Sequence[pytest.Item]) -> dict[str, list[Case]]:
    """Cases of the tests that share a process, by the name of the test; without those that are skipped.

    Those marked `last=True` come last: RLinf's own runner leaves its workers and their names behind.
    """
    marked = {item.nodeid: item.get_closest_marker("shared_run") for item in items if not _skipped(item)}
    marks = sorted(
        ((name, mark) for name, mark in marked.items() if mark is not None),
        key=lambda pair: bool(pair[1].kwargs.get("last")),
    )
    return {name: list(mark.args) for name, mark in marks}


def _of_earlier(override: str, runs: Sequence[int]) -> str:
    """`override` with the numbers of a test's own runs as those of all `runs`."""
    return EARLIER.sub(lambda match: f"{{run-{runs[int(match[1])]}}}", override)


def made_once(asked_for: dict[str, list[Case]]) -> tuple[list[Case], dict[str, list[int]]]:
    """The runs to make, and which of them are those of a test: its own twins stay two."""
    numbers: dict[tuple[Case, int], int] = {}
    of_test: dict[str, list[int]] = {}
    for name, cases in asked_for.items():
        own: list[int] = []
        for config, overrides in cases:
            case = config, tuple(_of_earlier(override, own) for override in overrides)
            twins = sum(case == list(numbers)[number][0] for number in own)
            own.append(numbers.setdefault((case, twins), len(numbers)))
        of_test[name] = own
    return [case for case, _ in numbers], of_test


def _skipped(item: pytest.Item) -> bool:
    return any(mark.args[0] for mark in item.iter_markers("skipif"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first of these tests waits for the runs of all.
    asked_for = _asked_for(items)
    limit = deadline_s(sum(map(len, asked_for.values()))) + 60
    for item in items:
        if item.nodeid in asked_for:
            item.add_marker(pytest.mark.timeout(limit))


@pytest.fixture(scope="session")
def shared_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Run]]]:
    """Runs of all tests that share a process, by the name of the test."""
    cases, of_test = made_once(_asked_for(request.session.items))
    runner = Runner(tmp_path_factory.mktemp("shared"))
    runner.declare("rlinf_async.envs", "flaky", "tests.runs.flaky_env:FlakyEnv")
    try:
        made = runner.several(cases)
        yield {name: [made[number] for number in numbers] for name, numbers in of_test.items()}
    finally:
        runner.close()


@pytest.fixture
def ended(request: pytest.FixtureRequest, shared_runs: dict[str, list[Run]]) -> list[Run]:
    """The runs of the test's own mark, which have ended well."""
    own = shared_runs[request.node.nodeid]
    for run in own:
        assert run.status == 0, run.output
    return own


@pytest.fixture
def gl() -> str:
    """An OpenGL back end that renders without a screen here."""
    found = installed_backend()
    if found is None:
        pytest.skip("no EGL or OSMesa library")
    return found
