"""From the record of what was served when, to numbers; the same arithmetic for every mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlinf_async.bench.bounds import bounds_of, own_bounds_of
from rlinf_async.bench.cpu import CpuMeter
from rlinf_async.bench.modes import Mode
from rlinf_async.bench.scenario import Scenario
from rlinf_async.bench.window import Environment, Record, Window, spread, window


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of one mode, over the steps after its warm-up."""

    step_s: float
    """Seconds per global step."""
    trained_per_s: float
    """Samples per second that were trained on for the first time."""
    collected_per_s: float | None
    """Samples per second that were collected; None where simulators are real."""
    fresh_steps_per_s: float
    """Environment steps per second: of the samples that were collected or trained, whichever are fewer."""
    retrained: float
    """The share of trained samples that an earlier step had been trained on already."""
    overlap_efficiency: float | None
    """Throughput over the most that `bounds_s` allow. None where times are not emulated, and where
    environments contribute unequally: such batches are not those that the bound is about."""
    own_efficiency: float | None
    """The same over the most that this mode's own work allows: every pass of its learner, its own shares."""
    bounds_s: dict[str, float]
    """Seconds that a step takes at least: of the environments, of inference, and of the learner."""
    own_bounds_s: dict[str, float]
    idle: dict[str, float]
    """Shares of the time, of the parts whose times were recorded."""
    staleness_max: int
    """Global steps that the weights were trained between an action and the training on it, at most."""
    batch_size: float
    chunk_cv: float | None
    """The measured spread of decisions of one environment, in units of their mean."""
    cpu_ms: float | None
    """CPU milliseconds per fresh environment step, of all processes of the run; None where not known."""
    others: float | None
    """Cores that something else than the run kept busy meanwhile."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    records: Sequence[Record],
    scenario: Scenario,
    mode: Mode,
    *,
    warm_up: int,
    steps: int,
    cpu: CpuMeter | None = None,
) -> Measurement:
    """Look at global steps `warm_up` to `warm_up + steps` of a run with one learner rank.

    Samples that had been collected before are no throughput of these steps, nor are those that are
    collected and not trained: what is counted is the smaller of the two.

    Args:
        records: of `core.spans`, in order of their ends.
        mode: whether every environment contributes equally.

    Raises:
        ValueError: the run trained fewer steps, or it was faster than its service times allow.
    """
    seen = window(records, scenario, warm_up=warm_up, steps=steps)
    environments = seen.environments()
    collected = sum(one.decisions for one in environments.values()) if scenario.env else None
    samples = seen.fresh if collected is None else min(seen.fresh, collected)
    bounds, own = bounds_of(environments, scenario), own_bounds_of(seen, environments, scenario, mode)
    overlap = samples / scenario.samples * max(bounds.values()) / seen.seconds if bounds else None
    if overlap is not None and overlap > 1.0 and not mode.free:
        raise ValueError(_too_fast(overlap, seen, collected, bounds))
    usage = cpu.between(seen.start, seen.stop) if cpu is not None else None
    return Measurement(
        step_s=seen.seconds / steps,
        trained_per_s=seen.fresh / seen.seconds,
        collected_per_s=None if collected is None else collected / seen.seconds,
        fresh_steps_per_s=samples * scenario.chunk / seen.seconds,
        retrained=1.0 - seen.fresh / (steps * scenario.samples),
        overlap_efficiency=None if mode.free else overlap,
        own_efficiency=samples / scenario.samples * max(own.values()) / seen.seconds if own else None,
        bounds_s=bounds,
        own_bounds_s=own,
        idle=_idle(seen, environments, scenario),
        staleness_max=seen.staleness_max,
        batch_size=float(np.mean([record["size"] for record, _ in seen.within("act")])),
        chunk_cv=spread(environments.values()) if scenario.env else None,
        cpu_ms=usage and 1000.0 * usage.run_s / (samples * scenario.chunk),
        others=usage and usage.others,
    )


def _too_fast(overlap: float, seen: Window, collected: float | None, bounds: Mapping[str, float]) -> str:
    part, seconds = max(bounds.items(), key=lambda bound: bound[1])
    return (
        f"an overlap efficiency of {overlap:.3f} is more than the service times allow: {part} needs "
        f"{seconds:.2f} s for a step, and {seen.steps} steps took {seen.seconds:.2f} s, in which "
        f"{seen.fresh} samples were trained for the first time and {collected:.0f} were collected; these "
        "steps are no steady state, so warm up for longer and measure more of them"
    )


def _idle(seen: Window, environments: Mapping[int, Environment], scenario: Scenario) -> dict[str, float]:
    """Shares of the window, 0 to 1; env: mean over the environments.

    Of a real policy only inference is known: the backward passes of its training are not recorded.
    """
    busy = {"inference": seen.busy_s("act")}
    if scenario.env:
        busy["learner"] = seen.busy_s("train", "score")
        busy["env"] = sum(one.busy_s for one in environments.values()) / scenario.envs
    return {part: max(0.0, 1.0 - seconds / seen.seconds) for part, seconds in sorted(busy.items())}
