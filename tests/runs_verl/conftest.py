"""Real runs under veRL: a command in a process of its own, on a real Ray cluster."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.trace import write_trace
from rlinf_async.observe.reading.status import status_of
from tests.runs.conftest import COMMAND, Run, Runner, deadline_s, part

ACTOR = "actor_rollout_ref.actor"
SMALL = (
    "++warm_start=null",
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=4",
    "env.train.action_repeat=1",
    "env.eval.total_num_envs=8",
    "data.train_batch_size=8",
    f"{ACTOR}.ppo_mini_batch_size=4",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",
    f"{ACTOR}.ppo_epochs=2",
    "trainer.total_training_steps=3",
)
"""Eight environments, four decisions: 32 samples a step, two optimizer steps of two micro-batches."""
GROUPS = (
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=4",
    f"{ACTOR}.ppo_mini_batch_size=1",
    "env.train.reward_kind=dense",
)
"""Two groups of four in the place of eight; in four decisions nobody succeeds, so that rewards are dense."""
VERLS = [sys.executable, "-m", "verl.trainer.main_ppo"]


@dataclass(frozen=True)
class Case:
    """A run that shares a process with others."""

    config: str
    overrides: Sequence[str]
    goes_on: int | None = None
    """The number of an earlier run; this one goes on in a copy of its directory."""


def small(config: str, *overrides: str, goes_on: int | None = None) -> Case:
    return Case(config, (*SMALL, *overrides), goes_on)


class VerlRunner(Runner):
    """Starts runs of configs for veRL."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.environment["VERL_PLATFORM"] = "cpu"
        self.environment["PYTHONPATH"] = str(Path(__file__).parents[2])

    def begin(self, config: str, *overrides: str, run_dir: str = "run"):
        """`rlinf-async train` of a small run, not waited for."""
        place = f"vla.run_dir={self.directory / run_dir}"
        return self.start(*COMMAND, "train", "-n", config, *SMALL, place, *overrides)

    def train(self, config: str, *overrides: str, run_dir: str = "run") -> Run:
        process = self.begin(config, *overrides, run_dir=run_dir)
        output, _ = process.communicate(timeout=400)
        return Run(process.returncode, output, self.directory / run_dir)

    def by_verls_command(self, config: str, *overrides: str) -> Run:
        """`python -m verl.trainer.main_ppo` to its end."""
        place = f"vla.run_dir={self.directory / 'run'}"
        process = self.start(*VERLS, "--config-name", config, *SMALL, place, *overrides)
        output, _ = process.communicate(timeout=400)
        return Run(process.returncode, output, self.directory / "run")

    def several(self, cases: Sequence[Case]) -> list[Run]:
        """Runs of `cases`, one after the other in one process."""
        directories = [self.directory / f"run-{number}" for number in range(len(cases))]
        given = [
            (
                case.config,
                [*case.overrides, f"vla.run_dir={directory}"],
                [] if case.goes_on is None else [str(directories[case.goes_on]), str(directory)],
            )
            for case, directory in zip(cases, directories, strict=True)
        ]
        file = self.directory / "several.json"
        file.write_text(json.dumps(given))
        process = self.start(sys.executable, "-m", "tests.runs_verl.several", str(file))
        output, _ = process.communicate(timeout=deadline_s(len(cases)))
        return [part(output, number, directory) for number, directory in enumerate(directories)]


def check_books(run: Run, *, steps: int = 3, staleness: int = 1, trained: int | None = None) -> None:
    """It has ended well: everything was trained once, and nothing too late; its records can be read."""
    assert run.status == 0, run.output
    summary, metrics = run.summary, run.metrics
    books = summary["trajectories"]
    assert books["produced"] == books["trained"] + sum(books["refused"].values())
    assert books["trained"] == (8 * steps if trained is None else trained)
    assert [line["step"] for line in metrics][-1] == steps
    assert max(line["async/staleness/max"] for line in metrics) <= staleness
    assert all(0 < line["train/actor/grad_norm"] < math.inf for line in metrics)
    assert write_trace(run.directory, run.directory / "trace.json") > 50
    assert status_of(run.directory)
    assert write_report([run.directory], run.directory / "report.html").stat().st_size > 10_000


@pytest.fixture
def runs(tmp_path: Path):
    runner = VerlRunner(tmp_path)
    yield runner
    runner.close()
