"""The logged steps of a finished run, and their averages."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.hosts.rlinf.metrics import STEP_METRIC, WORK_METRICS
from rlinf_async.observe.events import BUSY_METRIC, ENV_STEPS_METRIC, SECONDS_METRIC, StepReport
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import SUCCESS_WINDOW_STEPS, RunState

STOCK_ROLLOUT, STOCK_LEARNER = WORK_METRICS["env"], WORK_METRICS["learner"]
DEFAULT_GOAL = 0.8
"""Default success rate for the measures of time and environment steps to success."""


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
    def of(cls, steps: Sequence[StepReport], *, goal: float = DEFAULT_GOAL) -> Averages:
        """Return the averages over the steps of a run, in order.

        The `goal` is reached at the first step that ends a window with a mean success of at least `goal`;
        windows have as many steps as `success` is averaged over.

        Raises:
            ValueError: there is no step after the first.
        """
        if len(steps) < 2:
            raise ValueError(f"the run has logged {len(steps)} steps, and the first is not measured")
        # The first step does not overlap yet, and caches are cold.
        state = RunState.of(steps)
        step_s, busiest = state.regular.seconds / state.regular.steps, state.regular.busiest
        return cls(
            env_steps_per_s=state.regular.env_steps_per_second,
            step_s=step_s,
            rollout_s=busiest["env"] * step_s if "env" in busiest else None,
            learner_s=busiest["learner"] * step_s if "learner" in busiest else None,
            success=None if (ends := state.success.means) is None else ends[1],
            **_to_goal(steps, goal),
        )


def _to_goal(steps: Sequence[StepReport], goal: float) -> dict[str, float]:
    seconds = env_steps = 0.0
    window: deque[float] = deque(maxlen=SUCCESS_WINDOW_STEPS)
    for step in steps:
        seconds, env_steps = seconds + step.seconds, env_steps + step.env_steps
        if step.success is not None:
            window.append(step.success)
        if len(window) == SUCCESS_WINDOW_STEPS and statistics.fmean(window) >= goal:
            return {"seconds_to_goal": seconds, "env_steps_to_goal": env_steps}
    return {}


def read_own(run: Path) -> list[StepReport]:
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
    for name in (SECONDS_METRIC, ENV_STEPS_METRIC):
        if any(name not in metrics for metrics in steps):
            raise ValueError(f"{file} lacks {name}")
    return [StepReport.from_metrics(metrics) for metrics in steps]


def read_stock(run: Path, *, env_steps: int, stages: int) -> list[StepReport]:
    """Read the steps of RLinf's own runner from its TensorBoard event files.

    An env worker steps its pipeline stages, the equivalents of env shards, one after the other.

    Raises:
        ValueError: there are no event files, or they hold no step.
    """
    scalars = read_scalars(run)
    if "time/step" not in scalars:
        raise ValueError(f"the run has left no TensorBoard events with time/step in {run}")
    steps = []
    for number, seconds in scalars[STEP_METRIC].items():
        at = {tag: values[number] for tag, values in scalars.items() if number in values}
        line = {**at, "step": number, SECONDS_METRIC: seconds, ENV_STEPS_METRIC: env_steps}
        for part, tags, servers in (("env", STOCK_ROLLOUT, stages), ("learner", STOCK_LEARNER, 1)):
            if logged := [at[tag] for tag in tags if tag in at]:
                line[BUSY_METRIC.format(part)] = sum(logged) / servers / seconds
        steps.append(StepReport.from_metrics(line))
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
