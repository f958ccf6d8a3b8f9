"""The logged steps of a finished run, and their averages."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import SUCCESS_WINDOW_STEPS

WARM_UP = 1
"""Unmeasured steps at the start of a run: they do not overlap yet, and caches are cold."""
STOCK_ROLLOUT = ("time/env/env_interact_step", "time/env/env/bootstrap_step")
STOCK_LEARNER = ("time/actor/actor/compute_adv", "time/actor/run_training")
"""Times reported by RLinf's workers, each of the slowest rank; parts that a run lacks are left out."""
SUCCESS_METRIC = "env/success_once"
DEFAULT_GOAL = 0.8
"""Default success rate for the measures of time and environment steps to success."""


@dataclass(frozen=True, kw_only=True)
class StepMeasures:
    """One step; values that the run does not report are None."""

    seconds: float
    env_steps: float
    rollout_s: float | None
    """Seconds that the busiest env shard spent on stepping or resetting its simulators."""
    learner_s: float | None
    """Seconds that the busiest learner rank spent on computing."""
    success: float | None


@dataclass(frozen=True, kw_only=True)
class Averages:
    """Averages of a run: means over its steps after the first, success over its last steps.

    They are means because asynchronous steps come in bursts: a median would count only the quick ones.
    """

    env_steps_per_s: float
    step_s: float
    rollout_s: float | None
    learner_s: float | None
    success: float | None
    seconds_to_goal: float | None = None
    """Seconds from the first step on; None if the run has not reached the success rate."""
    env_steps_to_goal: float | None = None

    @classmethod
    def of(cls, steps: Sequence[StepMeasures], *, goal: float = DEFAULT_GOAL) -> Averages:
        """Return the averages over the steps of a run, in order.

        The `goal` is reached at the first step that ends a window with a mean success of at least `goal`;
        windows have as many steps as `success` is averaged over.

        Raises:
            ValueError: there is no step after the first.
        """
        measured = steps[WARM_UP:]
        if not measured:
            raise ValueError(f"the run has logged {len(steps)} steps, and the first is not measured")
        step_s = statistics.fmean(step.seconds for step in measured)
        rates = [step.success for step in steps if step.success is not None][-SUCCESS_WINDOW_STEPS:]
        return cls(
            env_steps_per_s=statistics.fmean(step.env_steps for step in measured) / step_s,
            step_s=step_s,
            rollout_s=_mean([step.rollout_s for step in measured]),
            learner_s=_mean([step.learner_s for step in measured]),
            success=statistics.mean(rates) if rates else None,
            **_to_goal(steps, goal),
        )


def _to_goal(steps: Sequence[StepMeasures], goal: float) -> dict[str, float]:
    seconds = env_steps = 0.0
    window: deque[float] = deque(maxlen=SUCCESS_WINDOW_STEPS)
    for step in steps:
        seconds, env_steps = seconds + step.seconds, env_steps + step.env_steps
        if step.success is not None:
            window.append(step.success)
        if len(window) == SUCCESS_WINDOW_STEPS and statistics.fmean(window) >= goal:
            return {"seconds_to_goal": seconds, "env_steps_to_goal": env_steps}
    return {}


def read_own(run: Path) -> list[StepMeasures]:
    """Read the steps of an asynchronous run from its `metrics.jsonl`.

    Raises:
        ValueError: the file is missing, or lacks the metrics of a run.
    """
    reader = RunReader(run)
    steps, file = reader.metrics(), reader.places.metrics
    if reader.problems:
        raise ValueError(f"of the run in {run}: {' '.join(reader.problems)}")
    if not steps:
        raise ValueError(f"the run has left no {file}")
    try:
        return [_own_step(metrics) for metrics in steps]
    except KeyError as error:
        raise ValueError(f"{file} lacks {error.args[0]}") from error


def _own_step(metrics: Mapping[str, float]) -> StepMeasures:
    seconds = metrics["async/step_seconds"]
    return StepMeasures(
        seconds=seconds,
        env_steps=metrics["async/env_steps"],
        rollout_s=metrics["async/busiest/env"] * seconds,
        learner_s=metrics["async/busiest/learner"] * seconds,
        success=metrics.get(SUCCESS_METRIC),
    )


def read_stock(run: Path, *, env_steps: int, stages: int) -> list[StepMeasures]:
    """Read the steps of RLinf's own runner from its TensorBoard event files.

    An env worker steps its pipeline stages, the equivalents of env shards, one after the other.

    Raises:
        ValueError: there are no event files, or they hold no step.
    """
    scalars = read_scalars(run)
    if "time/step" not in scalars:
        raise ValueError(f"the run has left no TensorBoard events with time/step in {run}")
    steps = []
    for number, seconds in scalars["time/step"].items():
        at = {tag: values[number] for tag, values in scalars.items() if number in values}
        rollout_s = _sum(at, STOCK_ROLLOUT)
        steps.append(
            StepMeasures(
                seconds=seconds,
                env_steps=env_steps,
                rollout_s=None if rollout_s is None else rollout_s / stages,
                learner_s=_sum(at, STOCK_LEARNER),
                success=at.get(SUCCESS_METRIC),
            )
        )
    return steps


def read_scalars(run: Path) -> dict[str, dict[int, float]]:
    """Read values by tag and step from the TensorBoard event files of a run; {} without such files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.WARNING)  # else it logs every opened file
    directory = RunDir(run).tensorboard
    if (directory / "all").exists():  # with runner.per_worker_log
        directory /= "all"
    if not any(directory.glob("events.out.*")):
        return {}
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]
    }


def _sum(values: Mapping[str, float], tags: Sequence[str]) -> float | None:
    logged = [values[tag] for tag in tags if tag in values]
    return sum(logged) if logged else None


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None
