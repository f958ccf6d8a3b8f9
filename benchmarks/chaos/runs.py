"""The run that is disturbed, what it came to, and the results of an experiment, kept as they come."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlinf_async.lab.process import OVERDUE_STATUS
from rlinf_async.observe.failures import count_failures
from rlinf_async.observe.run_dir import RunDir


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The demo on one host."""

    settings: Sequence[str]
    """The config and its overrides."""
    steps: str
    """The key of the number of steps."""
    run_dir: str
    kinds: Sequence[str]
    """Who is killed, in the words of `VICTIM_KINDS`."""


DEMOS = {
    "rlinf": Demo(
        settings=(
            "metaworld_ppo_mlp",
            "cluster.component_placement.env.placement=0:0-1",
            "cluster.component_placement.rollout.placement=0:0-1",
            "env.train.processes=1",
        ),
        steps="runner.max_epochs",
        run_dir="runner.logger.log_path",
        kinds=("simulator", "env", "inference"),
    ),
    # Its simulators live in the env workers.
    "verl": Demo(
        settings=("verl_metaworld_ppo_mlp", "env.workers=2", "vla.inference.ranks=2"),
        steps="trainer.total_training_steps",
        run_dir="vla.run_dir",
        kinds=("env", "inference"),
    ),
}


def demo(directory: Path, *, steps: int, overrides: Sequence[str], host: str = "rlinf") -> list[str]:
    """The command that trains it in `directory`, which is emptied."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    given = DEMOS[host]
    command = [sys.executable, "-m", "rlinf_async.cli", "train", *given.settings]
    return [*command, f"{given.steps}={steps}", f"{given.run_dir}={directory}", *overrides]


WARM_UP = 3
"""Steps at the beginning that are not measured; nobody is killed in the first of them."""
RESTARTS = ("env", "env_worker", "inference")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run; everything but `killed` is read from what it has written."""

    status: int
    hung: bool
    steps: int
    env_steps_per_second: float | None
    """Fresh ones, over the steps after the warm-up."""
    unaccounted: int | None
    """Trajectories that are in no column of the books; None if the run has written none."""
    refused: Mapping[str, int]
    staleness: float
    """The largest of any sample."""
    killed: Mapping[str, int]
    restarts: Mapping[str, int]
    """What the run says of itself: environments built anew, env workers and inference ranks started again."""
    faults: int
    """Lines of `failures.jsonl`."""

    @classmethod
    def of(cls, directory: Path, *, status: int, killed: Sequence[str]) -> Outcome:
        run = RunDir(directory)
        metrics = run.read_metrics()
        books: dict[str, Any] = {}
        if run.summary.exists():
            books = json.loads(run.summary.read_text())["trajectories"]
        measured = metrics[WARM_UP:]
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
                name: int(sum(step.get(f"async/restarts/{name}", 0) for step in metrics)) for name in RESTARTS
            },
            faults=count_failures(directory).kinds.total(),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _unaccounted(books: Mapping[str, Any]) -> int | None:
    if not books:
        return None
    return int(books["produced"] - books["trained"] - books["in_flight"] - sum(books["refused"].values()))


class Kept:
    """What each run has come to, by its name; whoever is interrupted goes on where there is no result yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, result: Any) -> None:
        """Keep a result, a line of the file; one of this name is replaced."""
        self.results[name] = result
        draft = self._path.with_suffix(".draft")
        lines = [f"{json.dumps(name)}: {json.dumps(kept)}" for name, kept in self.results.items()]
        draft.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        draft.replace(self._path)
