"""From the record of what was served when, to numbers; the same arithmetic for every mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlinf_async.bench.modes import Mode
from rlinf_async.bench.scenarios import Scenario
from rlinf_async.simulators.emulated import EnvService

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of one mode, over the steps after its warm-up."""

    step_s: float
    """Seconds per global step."""
    fresh_steps_per_s: float
    """Environment steps per second that were trained for the first time."""
    retrained: float
    """The share of trained samples that an earlier step had been trained on already."""
    overlap_efficiency: float | None
    """Fresh throughput over the most that the bounds below allow; None where times are not emulated."""
    bounds_s: dict[str, float]
    """What a step takes at least: of the environments, of inference, and of the learner."""
    idle: dict[str, float]
    """Shares of the time, of the parts whose times were recorded."""
    staleness_max: int
    """Global steps that the weights were trained between an action and the training on it, at most."""
    batch_size: float
    chunk_cv: float | None
    """The measured spread of decisions of one environment, in units of their mean."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    records: Sequence[Record], scenario: Scenario, mode: Mode, *, warm_up: int, steps: int
) -> Measurement:
    """Look at global steps `warm_up` to `warm_up + steps` of a run with one learner rank.

    Args:
        records: of `core.spans`, in order of their ends.
        mode: what the learner's work includes, and whether every environment contributes equally.

    Raises:
        ValueError: the run trained fewer steps.
    """
    training = [record for record in records if record["kind"] == "train"]
    calls = scenario.training_calls
    if len(training) < (warm_up + steps) * calls:
        raise ValueError(
            f"the run trained {len(training)} micro-batches, fewer than {warm_up + steps} steps of {calls}"
        )
    first, last = warm_up * calls, (warm_up + steps) * calls
    start, stop = float(training[first - 1]["ended"]), float(training[last - 1]["ended"])
    step_s = (stop - start) / steps
    seen = {sample for record in training[:first] for sample in record["samples"]}
    trained = {sample for record in training[first:last] for sample in record["samples"]}
    fresh = len(trained - seen) / (steps * scenario.samples)
    bounds = bounds_of(records, scenario, mode)
    return Measurement(
        step_s=step_s,
        fresh_steps_per_s=fresh * scenario.samples * scenario.chunk / step_s,
        retrained=1.0 - fresh,
        overlap_efficiency=fresh * max(bounds.values()) / step_s if bounds else None,
        bounds_s=bounds,
        idle=_idle(records, scenario, start, stop),
        staleness_max=max(
            index // calls - record["oldest"] // calls
            for index, record in enumerate(training[first:last], start=first)
        ),
        batch_size=_mean(record["size"] for record in _within(records, "act", start, stop)),
        chunk_cv=_spread(records) if scenario.env else None,
    )


def bounds_of(records: Sequence[Record], scenario: Scenario, mode: Mode) -> dict[str, float]:
    """Seconds that a step takes at least, if one part alone had to wait for nothing; {} if nothing is known.

    Where every environment contributes equally to a batch, the slowest counts, with the shortest possible
    answer to each of its decisions; where they need not, what all of them can do together. Inference
    answers all environments at once. The learner trains and, if the mode anchors its samples, evaluates
    all T + 1 observations of each environment without gradients.
    """
    env, policy = scenario.env, scenario.policy
    if env is None or policy is None:
        return {}
    per_decision, per_reset = _per_env(records, "step"), _per_env(records, "reset")
    answer = policy.act_s(scenario.envs if env.vectorised_s else 1)
    rollouts = [
        scenario.decisions * (float(np.mean(seconds)) + answer) + _between(env, per_reset.get(number, []))
        for number, seconds in per_decision.items()
    ]
    together = len(rollouts) / sum(1.0 / seconds for seconds in rollouts)
    shown = scenario.envs * (scenario.decisions + 1) if mode.anchors else 0
    trained = scenario.update_epoch * scenario.samples
    return {
        "env": together if mode.free else max(rollouts),
        "inference": scenario.decisions * policy.act_s(scenario.envs),
        "learner": policy.train_sample_s * (trained + shown * policy.score_share),
    }


def _between(env: EnvService, resets: Sequence[float]) -> float:
    """Seconds of the reset between two rollouts; episodes that end within a rollout are reset there."""
    return 0.0 if env.episode else float(np.mean(resets))


PARTS = {"step": "env", "reset": "env", "act": "inference", "train": "learner", "score": "learner"}


def _idle(records: Sequence[Record], scenario: Scenario, start: float, stop: float) -> dict[str, float]:
    """Shares of the time between `start` and `stop`, 0 to 1; env: mean over the environments.

    Of a real policy only inference is known: the backward passes of its training are not recorded.
    """
    known = set(PARTS.values()) if scenario.env else {"inference"}
    busy = dict.fromkeys(sorted(known), 0.0)
    for record in records:
        began, ended = max(start, record["began"]), min(stop, record["ended"])
        part = PARTS[record["kind"]]
        if ended <= began or part not in known:
            continue
        if part == "env":
            busy[part] += sum(min(ended - began, seconds) for seconds in record["seconds"]) / scenario.envs
        else:
            busy[part] += ended - began
    return {part: max(0.0, 1.0 - seconds / (stop - start)) for part, seconds in busy.items()}


def _spread(records: Sequence[Record]) -> float:
    return float(np.mean([np.std(values) / np.mean(values) for values in _per_env(records, "step").values()]))


def _per_env(records: Iterable[Record], kind: str) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record["kind"] == kind:
            for offset, one in enumerate(record["seconds"]):
                seconds[record["first"] + offset].append(one)
    return seconds


def _within(records: Iterable[Record], kind: str, start: float, stop: float) -> Iterable[Record]:
    return (record for record in records if record["kind"] == kind and start <= record["ended"] <= stop)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
