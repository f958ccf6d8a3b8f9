"""The demo run that the experiments disturb, and its outcome."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.process import OVERDUE_STATUS, OWN_CLUSTER
from rlinf_async.observe.reading.faults import count_faults
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The demo on one host."""

    settings: Sequence[str]
    """The config's name, then its overrides."""
    kinds: Sequence[str]
    """The kinds of processes to kill, as keys of `VICTIM_KINDS`."""


DEMO_BY_HOST = {
    "rlinf": Demo(
        settings=(
            "metaworld_ppo_mlp",
            "cluster.component_placement.env.placement=0:0-1",
            "cluster.component_placement.rollout.placement=0:0-1",
            "env.train.processes=1",
        ),
        kinds=("simulator", "env", "inference"),
    ),
    # Under veRL the simulators live in the env workers.
    "verl": Demo(
        settings=("verl_metaworld_ppo_mlp", "env.workers=2", "vla.inference.ranks=2"),
        kinds=("env", "inference"),
    ),
}
ONE_OF_EACH = ("metaworld_ppo_mlp",)
"""The demo on RLinf with one process of each kind."""


def training(directory: Path, settings: Sequence[str], *, steps: int, host: str = "rlinf") -> list[str]:
    """Empty `directory`, and return the command that trains `settings` in it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    own = SIDES_BY_HOST[host].run(directory=directory, steps=steps)
    return [sys.executable, "-m", "rlinf_async.cli", "train", *settings, *own]


def restarting(times: int) -> list[str]:
    """Return the options for up to `times` restarts of a run, a second after each end."""
    return ["--restarts", str(times), "--restart-wait", "1"]


@contextmanager
def under_way(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with its output in `log`; the end of the block sends it SIGTERM."""
    with log.open("wb") as output:
        environment = {**os.environ, **OWN_CLUSTER}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            yield process
        finally:
            process.terminate()


WARM_UP_STEPS = 3
"""Unmeasured steps at the beginning of a run."""
RESTART_KINDS = ("env", "env_worker", "inference")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one run; all but `status`, `hung` and `killed` is read from its run directory."""

    status: int
    hung: bool
    steps: int
    env_steps_per_second: float | None
    """Fresh env steps, over the steps after the warm-up."""
    unaccounted: int | None
    """Trajectories that the ledger counts neither as trained, refused nor in flight; None without ledger."""
    refused: Mapping[str, int]
    staleness: float
    """The largest staleness of any sample, in versions."""
    killed: Mapping[str, int]
    restarts: Mapping[str, int]
    """The run's own counts of rebuilt environments and of restarted env workers and inference ranks."""
    faults: int
    """The number of lines of `failures.jsonl`."""

    @classmethod
    def of(cls, directory: Path, *, status: int, killed: Sequence[str]) -> Outcome:
        run = RunDir(directory)
        metrics = RunReader(run.path).metrics()
        books: dict[str, Any] = {}
        if run.summary.exists():
            books = json.loads(run.summary.read_text())["trajectories"]
        measured = metrics[WARM_UP_STEPS:]
        seconds = sum(step["async/step_seconds"] for step in measured)
        return cls(
            status=status,
            hung=status == OVERDUE_STATUS,
            steps=len(metrics),
            env_steps_per_second=sum(s["async/env_steps"] for s in measured) / seconds if seconds else None,
            unaccounted=_unaccounted(books),
            refused=dict(books.get("refused", {})),
            staleness=max((step["async/staleness/max"] for step in metrics), default=0.0),
            killed={kind: list(killed).count(kind) for kind in dict.fromkeys(killed)},
            restarts={
                name: int(sum(step.get(f"async/restarts/{name}", 0) for step in metrics))
                for name in RESTART_KINDS
            },
            faults=count_faults(directory).kinds.total(),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _unaccounted(books: Mapping[str, Any]) -> int | None:
    if not books:
        return None
    return int(books["produced"] - books["trained"] - books["in_flight"] - sum(books["refused"].values()))
