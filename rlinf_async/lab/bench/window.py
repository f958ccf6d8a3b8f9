"""The steps of a run that are measured, and what was collected and trained while they went on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Record = Mapping[str, Any]
"""A span of `observe.spans`: `kind`, `began`, `ended`, and facts."""


@dataclass(kw_only=True)
class Environment:
    """The work of one environment within the window; the part of a decision that lies in it counts."""

    decisions: float = 0.0
    busy_s: float = 0.0
    """Seconds of its decisions and resets, without waiting."""
    seconds: list[float] = field(default_factory=list)
    """The seconds of each decision that ended within the window."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """From the end of the last warm-up step to the end of the last step, in seconds of the run's clock."""

    start: float
    stop: float
    steps: int
    trained: int
    """Samples that were trained on."""
    fresh: int
    """Samples that were trained on for the first time."""
    staleness_max: int
    """Global steps that the weights were trained between an action and the training on it, at most."""
    records: Sequence[Record]
    """All that was served, at any time of the run."""

    @property
    def seconds(self) -> float:
        return self.stop - self.start

    def within(self, *kinds: str) -> Iterator[tuple[Record, float]]:
        """Yield the records of these kinds, with the share of their time that lies within the window."""
        for record in self.records:
            began, end = max(self.start, record["began"]), min(self.stop, record["ended"])
            if record["kind"] in kinds and end > began:
                yield record, (end - began) / (record["ended"] - record["began"])

    def busy_s(self, *kinds: str) -> float:
        """Seconds of the window in which something of these kinds was served, one at a time."""
        return float(
            sum(share * (record["ended"] - record["began"]) for record, share in self.within(*kinds))
        )

    def environments(self) -> dict[int, Environment]:
        """Emulated environments by their numbers; none where simulators are real."""
        environments: dict[int, Environment] = defaultdict(Environment)
        for record, share in self.within("step", "reset"):
            for offset, seconds in enumerate(record["seconds"]):
                one = environments[record["first"] + offset]
                one.busy_s += share * seconds
                if record["kind"] == "step":
                    one.decisions += share
                    if record["ended"] <= self.stop:
                        one.seconds.append(seconds)
        return dict(environments)


def window(records: Sequence[Record], *, calls: int, warm_up: int, steps: int) -> Window:
    """Global steps `warm_up` to `warm_up + steps` of a run with one learner rank.

    Args:
        records: in order of their ends.
        calls: micro-batches of a step.

    Raises:
        ValueError: the run trained fewer steps.
    """
    training = [record for record in records if record["kind"] == "train"]
    if len(training) < (warm_up + steps) * calls:
        raise ValueError(
            f"the run trained {len(training)} micro-batches, fewer than {warm_up + steps} steps of {calls}"
        )
    first, last = warm_up * calls, (warm_up + steps) * calls
    measured = training[first:last]
    return Window(
        start=float(training[first - 1]["ended"]),
        stop=float(measured[-1]["ended"]),
        steps=steps,
        trained=sum(len(record["samples"]) for record in measured),
        fresh=len(_samples(measured) - _samples(training[:first])),
        staleness_max=max(
            index // calls - record["oldest"] // calls for index, record in enumerate(measured, start=first)
        ),
        records=records,
    )


def spread(environments: Iterable[Environment]) -> float:
    """The spread of one environment's decisions in units of their mean, on average."""
    return float(np.mean([np.std(one.seconds) / np.mean(one.seconds) for one in environments]))


def _samples(training: Iterable[Record]) -> set[int]:
    return {sample for record in training for sample in record["samples"]}
