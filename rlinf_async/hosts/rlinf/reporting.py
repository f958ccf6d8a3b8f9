"""What is said about a step, collected from all workers while the next one is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.metric_utils import compute_evaluate_metrics

from rlinf_async.core.tracing import StepReport
from rlinf_async.hosts.rlinf.fleet import Fleet

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

    def __init__(self, fleet: Fleet, logger: MetricLogger, run_dir: Path, *, total: int) -> None:
        self._fleet = fleet
        self._logger = logger
        self._run_dir = run_dir
        self._total = total

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
                "env": _mean([share for _, share in env]),
                "inference": _mean(inference),
                "learner": _mean([rank["busy"] for rank in trained.learners]),
            },
            staleness=trajectories.staleness,
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


def prefixed(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """`{prefix/name: value}`, as plain numbers."""
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
