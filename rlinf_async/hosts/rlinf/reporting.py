"""What is said about a step, collected from all workers while the next one is trained."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.metric_utils import compute_evaluate_metrics

from rlinf_async import __version__
from rlinf_async.core.tracing import Shares, Spread, StepReport
from rlinf_async.hosts.rlinf.compat import rlinf_tree
from rlinf_async.hosts.rlinf.fleet import Fleet
from rlinf_async.hosts.rlinf.settings import Settings

OWN = ("busy", "publication_seconds")
"""What `learn` returns beside RLinf's metrics."""


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """A step of the learner; it can be reported once its version is published."""

    step: int
    seconds: float
    """From the end of the step before to where the learner could begin the next."""
    publication_seconds: float
    """Of these, the ones that publication took from the learner."""
    learners: list[dict[str, float]]
    """What `learn` returned on every rank."""
    evaluation: dict[str, float]
    published: list[Any]
    """Calls that end when every inference rank acts by the version of this step."""

    @property
    def batch(self) -> int:
        """The global batch that was trained."""
        return self.step - 1

    def metrics(self, lag_seconds: float | None) -> dict[str, float]:
        """Of the learner, of publication and of evaluation."""
        training = {name: value for name, value in self.learners[0].items() if name not in OWN}
        publication = {"async/publication_seconds": self.publication_seconds}
        if lag_seconds is not None:
            publication["async/publication/lag_seconds"] = lag_seconds
        return {**training, **publication, **self.evaluation}


class StepReporter:
    """Asks every worker what it did in a step, and writes it down."""

    def __init__(
        self, fleet: Fleet, logger: MetricLogger, run_dir: Path, *, total: int, settings: Settings
    ) -> None:
        self._fleet = fleet
        self._logger = logger
        self._run_dir = run_dir
        self._total = total
        self._free = settings.asynchrony.train.balance == "free"

    def collect(self, trained: TrainedStep) -> tuple[StepReport, dict[str, float]]:
        """The report of a step, and the statistics of its episodes; shares are of the time since the last."""
        env = self._fleet.run("env", "pop_metrics", trained.batch)
        inference = self._fleet.run("rollout", "pop_busy")
        requests = self._fleet.run("requests", "pop_batches")[0]
        trajectories = self._fleet.run("trajectories", "pop_trained", trained.batch)[0]
        episodes = compute_evaluate_metrics([result for result, _ in env if result])
        report = StepReport(
            step=trained.step,
            total=self._total,
            seconds=trained.seconds,
            env_steps=trajectories.env_steps,
            episode_return=_optional(episodes.get("return")),
            success=_optional(episodes.get("success_once")),
            busy={
                "env": Shares.of([share for _, shards in env for share in shards]),
                "inference": Shares.of([share for rank in inference for share in rank]),
                "learner": Shares.of([rank["busy"] for rank in trained.learners]),
            },
            publication=min(1.0, trained.publication_seconds / trained.seconds) if trained.seconds else 0.0,
            staleness=trajectories.staleness,
            share=trajectories.share if self._free else Spread(),
            batch_size=requests["size"],
            batch_wait=requests["wait"],
        )
        return report, prefixed("env", episodes)

    def log(self, trained: TrainedStep, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step to `metrics.jsonl` and to RLinf's loggers."""
        self._logger.log(dict(metrics), trained.batch)
        line = {"step": trained.step, **{name: float(value) for name, value in sorted(metrics.items())}}
        with (self._run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def write_facts(run_dir: Path, settings: Settings, title: str) -> None:
    """`run.json`: what a reader of the run directory needs beside the config.

    What an earlier run has said of itself there goes: its clock, its processes and its end are another's.
    """
    for name in ("trace", "stacks"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
    for name in ("status.json", "summary.json"):
        (run_dir / name).unlink(missing_ok=True)
    asynchrony = settings.asynchrony
    facts = {
        "title": title,
        "began": time.time(),
        "versions": _versions(),
        "python": platform.python_version(),
        "levels": asynchrony.levels,
        "max_staleness": asynchrony.max_staleness,
        "steps": settings.batches,
        "plan": asdict(settings.plan),
        "horizon": settings.horizon,
        "max_batch_size": settings.max_batch_size,
        "max_wait_s": asynchrony.rollout.max_wait,
        "micro_batch_size": settings.micro_batch_size,
    }
    (run_dir / "run.json").write_text(json.dumps(facts, indent=2) + "\n")


def _versions() -> dict[str, str]:
    tree = rlinf_tree()
    own = {"rlinf-async": __version__, "rlinf": tree.version if tree else "unknown"}
    return {**own, **{name: version(name) for name in ("ray", "torch")}}


def prefixed(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """`{prefix/name: value}`, as plain numbers."""
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
