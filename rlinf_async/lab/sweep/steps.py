"""The steps of a finished run, as it has logged them, and what they amount to."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.summary import SUCCESS_WINDOW_STEPS

WARM_UP = 1
"""Steps at the start of a run that are not measured: nothing overlaps yet, and caches are cold."""
STOCK_ROLLOUT = ("time/env/env_interact_step", "time/env/env/bootstrap_step")
STOCK_LEARNER = ("time/actor/actor/compute_adv", "time/actor/run_training")
"""Times that RLinf's workers report, the slowest rank of each; parts that a run lacks are left out."""
SUCCESS_METRIC = "env/success_once"
DEFAULT_GOAL = 0.8
"""The success rate that runs are timed to, unless another is asked for."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step; None is what the run does not report."""

    seconds: float
    env_steps: float
    rollout_s: float | None
    """Seconds in which the busiest env shard stepped or reset its simulators."""
    learner_s: float | None
    """Seconds in which the busiest learner rank computed."""
    success: float | None


@dataclass(frozen=True, kw_only=True)
class Averages:
    """A run in numbers: means over its steps after the first, success over its last ones.

    Means, because asynchronous steps come in bursts: a median would count the quick ones alone.
    """

    env_steps_per_s: float
    step_s: float
    rollout_s: float | None
    learner_s: float | None
    success: float | None
    seconds_to_goal: float | None = None
    """From the first step on; None where success has not come so far."""
    env_steps_to_goal: float | None = None

    @classmethod
    def of(cls, steps: Sequence[Step], *, goal: float = DEFAULT_GOAL) -> Averages:
        """Return the averages over the steps of a run, in order.

        The `goal` is reached at the first step that ends a window of as many as count for `success`, whose
        mean is that rate or more.

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


def _to_goal(steps: Sequence[Step], goal: float) -> dict[str, float]:
    seconds = env_steps = 0.0
    window: deque[float] = deque(maxlen=SUCCESS_WINDOW_STEPS)
    for step in steps:
        seconds, env_steps = seconds + step.seconds, env_steps + step.env_steps
        if step.success is not None:
            window.append(step.success)
        if len(window) == SUCCESS_WINDOW_STEPS and statistics.fmean(window) >= goal:
            return {"seconds_to_goal": seconds, "env_steps_to_goal": env_steps}
    return {}


def read_own(run: Path) -> list[Step]:
    """Steps of an asynchronous run, from its `metrics.jsonl`.

    Raises:
        ValueError: there is no such file, or it lacks what a run writes there.
    """
    directory = RunDir(run)
    steps = directory.read_metrics()
    if directory.problems:
        raise ValueError(f"of the run in {run}: {' '.join(directory.problems)}")
    if not steps:
        raise ValueError(f"the run has left no {directory.metrics}")
    try:
        return [_own_step(metrics) for metrics in steps]
    except KeyError as error:
        raise ValueError(f"{directory.metrics} lacks {error.args[0]}") from error


def _own_step(metrics: Mapping[str, float]) -> Step:
    seconds = metrics["async/step_seconds"]
    return Step(
        seconds=seconds,
        env_steps=metrics["async/env_steps"],
        rollout_s=metrics["async/busiest/env"] * seconds,
        learner_s=metrics["async/busiest/learner"] * seconds,
        success=metrics.get(SUCCESS_METRIC),
    )


def read_stock(run: Path, *, env_steps: int, stages: int) -> list[Step]:
    """Steps of RLinf's own runner, from its TensorBoard event files.

    An env worker steps its pipeline stages, which are env shards here, one after the other.

    Raises:
        ValueError: there are no event files, or no step in them.
    """
    scalars = read_scalars(run)
    if "time/step" not in scalars:
        raise ValueError(f"the run has left no TensorBoard events with time/step in {run}")
    steps = []
    for number, seconds in scalars["time/step"].items():
        at = {tag: values[number] for tag, values in scalars.items() if number in values}
        rollout_s = _sum(at, STOCK_ROLLOUT)
        steps.append(
            Step(
                seconds=seconds,
                env_steps=env_steps,
                rollout_s=None if rollout_s is None else rollout_s / stages,
                learner_s=_sum(at, STOCK_LEARNER),
                success=at.get(SUCCESS_METRIC),
            )
        )
    return steps


def read_scalars(run: Path) -> dict[str, dict[int, float]]:
    """Values by tag and step, from the TensorBoard event files of a run; none without such files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.WARNING)  # it tells of every file that it opens
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
