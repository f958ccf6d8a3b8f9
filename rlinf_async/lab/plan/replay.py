"""The service times of a run, and a replay of the run with them, to check the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.lab.plan.calibrate import times_of
from rlinf_async.lab.plan.job import Job, of_run
from rlinf_async.lab.plan.prediction import step_after_first
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.virtual.times import Times
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.spans import Span

MAX_REPLAY_ERROR = 0.05
"""A plan is called doubtful above this relative error of its replay."""
PAUSE_KINDS = ("evaluate", "save")
LEAST_STEPS = 3
"""Fewest steps of a usable run; its first step is not counted."""


MOST_STEPS = 40
"""Most steps of a run that are planned; by then a run is steady."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A measured run, and the plan of the same run."""

    job: Job
    times: Times
    measured_step_s: float
    """Measured seconds per global step after the first, without evaluation and checkpoints."""
    spread: float
    """Standard deviation of single steps over their mean."""
    planned_step_s: float

    @property
    def error(self) -> float:
        """Planned minus measured step seconds, as a share of the measured ones."""
        return self.planned_step_s / self.measured_step_s - 1.0

    @property
    def close(self) -> bool:
        """True if predictions of other settings can be trusted."""
        return abs(self.error) <= MAX_REPLAY_ERROR

    @property
    def warning(self) -> str | None:
        """A sentence on a doubtful replay, with the remedy; None for a good replay."""
        if self.close:
            return None
        return (
            f"the replay of this run takes {self.planned_step_s:.2f} s a step, {self.error:+.1%} of the "
            f"{self.measured_step_s:.2f} s that were measured (single steps differ by {self.spread:.0%}): "
            "something takes time that the trace does not show, or processes share too few cores. Compare "
            "settings by this plan with care, and calibrate from a longer run on a machine of its own"
        )


def replay(path: Path) -> Replay:
    """Calibrate from the run directory `path`, and plan the same run.

    Raises:
        ValueError: `path` is no run directory, or holds too little.
    """
    files = RunFiles.read(path)
    try:
        return _replayed(path, files)
    except ValueError:
        raise
    # Records of one run fit each other; those of a damaged or foreign run can lack anything.
    except (LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"the records in {path} do not fit each other, and no plan can be made from them "
            f"({type(error).__name__}: {error})"
        ) from error


def _check_of_one_run(settings: RunSettings, spans: Sequence[Span]) -> None:
    """Check that the sizes fit the trace: a file can hold any sizes, and planning large ones takes long.

    Raises:
        ValueError: a batch has more in it than all of the trace, or no forward pass was as large as a shard.
    """
    plan = settings.plan
    decisions = plan.shards * plan.rollout_epochs * settings.horizon
    passes = settings.update_epoch * settings.optimizer_steps * settings.micro_batches_per_step
    events = decisions + passes
    sizes = [span.get("size", 0) for span in spans if span["kind"] == "forward"]
    if not sizes:
        return  # `times_of` reports the missing records
    largest = max(sizes)
    if events > len(spans) or plan.envs_per_shard > largest:
        raise ValueError(
            f"by run.json and config.yaml a batch has {events:,} decisions and micro-batches, and a shard "
            f"{plan.envs_per_shard:,} environments; the trace has {len(spans):,} spans, and forward passes "
            f"of at most {largest:,}: they are not of one run"
        )


def _replayed(path: Path, files: RunFiles) -> Replay:
    job = of_run(files.facts, files.config)
    _check_of_one_run(job.settings, files.spans)
    times = times_of(files.spans, job)
    every = [line["async/step_seconds"] for line in files.metrics if "async/step_seconds" in line]
    steps = every[1:]
    if len(steps) < LEAST_STEPS - 1:
        raise ValueError(
            f"the metrics.jsonl of {path} has the durations of {len(every)} steps; a plan needs those of at "
            f"least {LEAST_STEPS}"
        )
    first = min(span["ended"] for span in files.spans if span["kind"] == "finish")
    paused = sum(
        span["ended"] - span["began"]
        for span in files.spans
        if span["kind"] in PAUSE_KINDS and span["began"] >= first
    )
    measured = (sum(steps) - paused) / len(steps)
    if measured <= 0 or min(every) < 0:
        raise ValueError(
            f"the steps in metrics.jsonl of {path} took {sum(steps):.2f} s, of which {paused:.2f} s were "
            "evaluations and checkpoints: these are no durations, and no plan can be made from them"
        )
    mean = sum(steps) / len(steps)
    return Replay(
        job=job,
        times=times,
        measured_step_s=measured,
        spread=(sum((one - mean) ** 2 for one in steps) / len(steps)) ** 0.5 / mean,
        planned_step_s=step_after_first(job.settings, times, batches=min(len(steps) + 1, MOST_STEPS)),
    )
