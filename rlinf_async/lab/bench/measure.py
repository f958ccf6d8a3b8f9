"""Compute a measurement from the spans of a run, with the same arithmetic for every mode."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from rlinf_async.lab.bench.cpu import CpuMeter
from rlinf_async.lab.bench.scenarios import Scenario
from rlinf_async.lab.bench.sides import Schedule
from rlinf_async.lab.emulated.service import SAMPLE_NUMBER_BASE

SpanRecord = Mapping[str, Any]
"""A span of `observe.spans`: `kind`, `began`, `ended`, and facts."""


@dataclass(kw_only=True)
class Environment:
    """The work of one environment within the window; the part of a decision that lies in it counts."""

    decisions: float = 0.0
    """Decisions; a rollout whose episodes end early counts as a whole rollout."""
    played: float = 0.0
    """Decisions of its episodes."""
    stepped: float = 0.0
    """Decisions of its episodes, and those after their ends."""
    live_s: float = 0.0
    """Seconds of resets and of the decisions of its episodes, without waiting."""
    busy_s: float = 0.0
    """The same, with the decisions after the ends of episodes."""
    seconds: list[float] = field(default_factory=list)
    """The seconds of each decision that ended within the window."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """From the end of the last warm-up step to the end of the last step, in seconds of the run's clock."""

    start: float
    stop: float
    steps: int
    fresh: int
    """Samples that were trained on for the first time."""
    staleness_max: int
    """Largest number of global steps that the weights were trained between an action and its training."""
    records: Sequence[SpanRecord]
    """The records of the whole run."""

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    def within(self, *kinds: str) -> Iterator[tuple[SpanRecord, float]]:
        """Yield the records of these kinds, with the share of their time that lies within the window."""
        for record in self.records:
            began, end = max(self.start, record["began"]), min(self.stop, record["ended"])
            if record["kind"] in kinds and end > began:
                yield record, (end - began) / (record["ended"] - record["began"])

    def busy_s(self, *kinds: str) -> float:
        """Return the summed seconds of the records of these kinds within the window; they never overlap."""
        return float(
            sum(share * (record["ended"] - record["began"]) for record, share in self.within(*kinds))
        )

    def environments(self, *, decisions: int) -> dict[int, Environment]:
        """Return the emulated environments by number, for `decisions` in a whole rollout; none if simulators
        are real.
        """
        environments: dict[int, Environment] = defaultdict(Environment)
        for record, share in self.within("step", "reset"):
            shares = record.get("shares")
            for offset, seconds in enumerate(record["seconds"]):
                one = environments[record["first"] + offset]
                one.busy_s += share * seconds
                if record["kind"] == "reset":
                    one.live_s += share * seconds
                    continue
                one.stepped += share
                if record["ended"] <= self.stop:
                    one.seconds.append(seconds)
                if shares is None or shares[offset]:
                    one.live_s += share * seconds
                    one.played += share
                    one.decisions += share if shares is None else share * shares[offset] * decisions
        return dict(environments)


def window(
    records: Sequence[SpanRecord], *, calls: int, warm_up: int, steps: int, rollout: int | None = None
) -> Window:
    """Return the window of global steps `warm_up` to `warm_up + steps` of a run with one learner rank.

    Args:
        records: the records, in order of their ends.
        calls: micro-batches of a step.
        rollout: samples of a whole rollout if single samples may be left out; each step then trains the next
            rollout of every environment, in any number of micro-batches. None if every sample is trained.

    Raises:
        ValueError: the run trained fewer steps.
    """
    training = [record for record in records if record["kind"] == "train"]
    ends = _step_ends(training, calls if rollout is None else None)
    if len(ends) < warm_up + steps:
        whole = f" of {calls}" if rollout is None else ""
        raise ValueError(
            f"the run trained {len(training)} micro-batches, fewer than {warm_up + steps} steps{whole}"
        )
    first, last = ends[warm_up - 1], ends[warm_up + steps - 1]
    measured_steps = training[first:last]
    new, old = _samples(measured_steps), _samples(training[:first])
    return Window(
        start=float(training[first - 1]["ended"]),
        stop=float(measured_steps[-1]["ended"]),
        steps=steps,
        fresh=len(new - old) if rollout is None else rollout * len(_rollouts_of(new) - _rollouts_of(old)),
        staleness_max=max(
            bisect_right(ends, index) - bisect_right(ends, record["oldest"])
            for index, record in enumerate(measured_steps, start=first)
        ),
        records=records,
    )


def _step_ends(training: Sequence[SpanRecord], calls: int | None) -> list[int]:
    """Return the micro-batches that are trained by the end of each step: `calls` more each time, or (None)
    all of one rollout.
    """
    if calls is not None:
        return list(range(calls, len(training) + 1, calls))
    numbers = [record["samples"][0] // SAMPLE_NUMBER_BASE % SAMPLE_NUMBER_BASE for record in training]
    return [index for index, (one, other) in enumerate(pairwise(numbers), start=1) if one != other]


def spread(environments: Iterable[Environment]) -> float:
    """Return the mean coefficient of variation of an environment's decision times."""
    return float(np.mean([np.std(one.seconds) / np.mean(one.seconds) for one in environments]))


def _samples(training: Iterable[SpanRecord]) -> set[int]:
    return {sample for record in training for sample in record["samples"]}


def _rollouts_of(samples: Iterable[int]) -> set[int]:
    """Return the numbers of the environments and their rollouts that samples are of."""
    return {sample // SAMPLE_NUMBER_BASE for sample in samples}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of one mode, over the steps after its warm-up."""

    step_s: float
    """Seconds per global step."""
    trained_per_s: float
    """Samples per second that were trained on for the first time."""
    collected_per_s: float | None
    """Samples per second that were collected; None if simulators are real."""
    fresh_steps_per_s: float
    """Environment steps per second: of the samples that were collected or trained, whichever are fewer."""
    retrained: float
    """The share of trained samples that an earlier step had been trained on already."""
    overlap_efficiency: float | None
    """Throughput over the largest that `bounds_s` allow. None if times are not emulated, or if environments
    do not play their own tasks in every batch, as the bound assumes. Over few steps it can be a little above
    1: when the steps end, other environments may be ahead of the slowest by the bound on staleness, and when
    they begin, by less."""
    own_efficiency: float | None
    """Throughput over the largest that `own_bounds_s` allow."""
    bounds_s: dict[str, float]
    """Least seconds of a step, for the environments, inference, and the learner; see `bounds_of`."""
    own_bounds_s: dict[str, float]
    """The same with the mode's own work; see `own_bounds_of`."""
    idle: dict[str, float]
    """Idle shares of the time, for the parts with recorded times."""
    staleness_max: int
    """Largest number of global steps that the weights were trained between an action and its training."""
    batch_size: float
    chunk_cv: float | None
    """The measured spread of decisions of one environment, in units of their mean."""
    cpu_ms: float | None
    """CPU milliseconds per fresh environment step, of all processes of the run; None where not known."""
    others: float | None
    """Cores kept busy by other processes than the run's, on average."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    records: Sequence[SpanRecord],
    scenario: Scenario,
    mode: Schedule,
    *,
    warm_up: int,
    steps: int,
    cpu: CpuMeter | None = None,
) -> Measurement:
    """Measure global steps `warm_up` to `warm_up + steps` of a run with one learner rank.

    The throughput of these steps counts neither samples that were collected earlier, nor samples that were
    collected and not trained: it is the smaller of both rates.

    Args:
        records: spans of `observe.spans`, in order of their ends.
        mode: the run's mode; its balance decides which bounds apply.

    Raises:
        ValueError: the run trained fewer steps, or was busy for longer than they took.
    """
    cut = scenario.ends_early and mode.kind != "stock"
    steady = window(
        records,
        calls=scenario.micro_batches,
        warm_up=warm_up,
        steps=steps,
        rollout=scenario.decisions if cut else None,
    )
    environments = steady.environments(decisions=scenario.decisions)
    collected_samples = sum(one.decisions for one in environments.values()) if scenario.env else None
    samples = steady.fresh if collected_samples is None else min(steady.fresh, collected_samples)
    bounds, own = bounds_of(environments, scenario), own_bounds_of(steady, environments, scenario, mode)
    overlap = samples / scenario.samples * max(bounds.values()) / steady.seconds if bounds else None
    own_tasks = mode.balance_in(scenario) == "exact"
    if own_tasks and bounds:
        _check(steady, environments, scenario)
    usage = cpu.between(steady.start, steady.stop) if cpu is not None else None
    return Measurement(
        step_s=steady.seconds / steps,
        trained_per_s=steady.fresh / steady.seconds,
        collected_per_s=None if collected_samples is None else collected_samples / steady.seconds,
        fresh_steps_per_s=samples * scenario.chunk / steady.seconds,
        retrained=1.0 - steady.fresh / (steps * scenario.samples),
        overlap_efficiency=overlap if own_tasks else None,
        own_efficiency=samples / scenario.samples * max(own.values()) / steady.seconds if own else None,
        bounds_s=bounds,
        own_bounds_s=own,
        idle=_idle(steady, environments, scenario),
        staleness_max=steady.staleness_max,
        batch_size=float(np.mean([record["size"] for record, _ in steady.within("act")])),
        chunk_cv=spread(environments.values()) if scenario.env else None,
        cpu_ms=None if usage is None else 1000.0 * usage.run_s / (samples * scenario.chunk),
        others=None if usage is None else usage.others,
    )


def bounds_of(environments: Mapping[int, Environment], scenario: Scenario) -> dict[str, float]:
    """Return the least seconds of a step for each part, if that part never waited; {} if nothing is known.

    The bounds are the same for every mode, and count only work before the ends of episodes. A batch holds
    equal amounts of every environment, so that the slowest counts, with the shortest possible answer to each
    of its decisions. Inference answers all environments at once, and simulators have its device as long as
    they need it. The learner trains on every sample once per epoch, and does nothing else.
    """
    env, policy = scenario.env, scenario.policy
    if env is None or policy is None:
        return {}
    alive = sum(one.played for one in environments.values()) / sum(
        one.decisions for one in environments.values()
    )
    return {
        "env": max(_rollouts(environments, scenario)),
        "inference": alive
        * scenario.decisions
        * (policy.act_s(scenario.envs) + scenario.envs * env.device_s),
        "learner": alive * policy.train_sample_s * scenario.update_epoch * scenario.samples,
    }


def own_bounds_of(
    window: Window, environments: Mapping[int, Environment], scenario: Scenario, mode: Schedule
) -> dict[str, float]:
    """Return the same bounds with the mode's own work: every pass of its learner, and its own shares.

    If fast environments may contribute more than slow ones, the joint rate of all environments counts; if
    they take on each other's tasks, the joint time of all environments for a batch.
    """
    bounds = bounds_of(environments, scenario)
    if not bounds:
        return {}
    rollouts = _rollouts(environments, scenario, own=True)
    env = {
        "exact": max(rollouts),
        "tasks": sum(rollouts) / len(rollouts),
        "free": len(rollouts) / sum(1.0 / seconds for seconds in rollouts),
    }
    return {
        **bounds,
        "env": env[mode.balance_in(scenario)],
        "inference": bounds["inference"] + window.busy_s("anchor") / window.steps,
        "learner": window.busy_s("train", "score") / window.steps,
    }


def _rollouts(
    environments: Mapping[int, Environment], scenario: Scenario, *, own: bool = False
) -> list[float]:
    """Return the seconds of each environment for its decisions and resets of a step; with `own`, its
    decisions after the ends of episodes count, too.
    """
    env, policy = scenario.env, scenario.policy
    assert env is not None
    assert policy is not None
    answer = policy.act_s(scenario.envs if env.vectorised_s else 1)
    work = [(one.busy_s, one.stepped) if own else (one.live_s, one.played) for one in environments.values()]
    return [
        scenario.decisions * (seconds + decisions * answer) / one.decisions
        for one, (seconds, decisions) in zip(environments.values(), work, strict=True)
    ]


def _check(steady: Window, environments: Mapping[int, Environment], scenario: Scenario) -> None:
    """Check that no part that does one thing at a time was busy for longer than the steps took."""
    policy = scenario.policy
    assert policy is not None
    answer = policy.act_s(1)
    busy = {
        f"environment {number}": one.busy_s + one.stepped * answer for number, one in environments.items()
    }
    busy["the learner"] = steady.busy_s("train")
    part, seconds = max(busy.items(), key=lambda one: one[1])
    if seconds > steady.seconds + answer:  # the answer to the first decision can be older than the steps
        raise ValueError(
            f"{part} was busy for {seconds:.2f} s of the {steady.seconds:.2f} s that {steady.steps} steps "
            "took, which cannot be: it does one thing at a time"
        )


def _idle(steady: Window, environments: Mapping[int, Environment], scenario: Scenario) -> dict[str, float]:
    """Return the idle shares of the window, 0 to 1; that of `env` is the mean over the environments.

    For a real policy only inference is known: the backward passes of its training are not recorded.
    """
    busy = {"inference": steady.busy_s("act", "anchor")}
    if scenario.env:
        busy["learner"] = steady.busy_s("train", "score")
        busy["env"] = sum(one.busy_s for one in environments.values()) / scenario.envs
    return {part: max(0.0, 1.0 - seconds / steady.seconds) for part, seconds in sorted(busy.items())}
