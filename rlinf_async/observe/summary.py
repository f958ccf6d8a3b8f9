"""What a whole run did, for its last words and for `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.diagnosis import Diagnosis
from rlinf_async.observe.meters import Spread, StepReport

WINDOW = 4
"""Steps over which success is averaged at the start and at the end: one step has few episodes."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Sums and means over the steps of a run; shares and rates are weighted by time."""

    steps: int
    seconds: float
    env_steps: int
    busy: dict[str, float]
    bound: Diagnosis | None
    """What bounds the run, over the steps after the first, which waits for everything."""
    staleness: Spread
    batch_size: Spread
    success: tuple[float, float] | None
    """Mean success rate of the first and of the last `window` steps."""
    window: int
    ledger: Ledger

    @classmethod
    def of(cls, reports: Sequence[StepReport], ledger: Ledger) -> RunSummary:
        seconds = sum(report.seconds for report in reports)
        names = reports[0].busy if reports else ()
        seen = [report.success for report in reports if report.success is not None]
        window = min(WINDOW, len(seen))
        return cls(
            steps=len(reports),
            seconds=seconds,
            env_steps=sum(report.env_steps for report in reports),
            busy={name: sum(r.busy[name].mean * r.seconds for r in reports) / seconds for name in names},
            bound=_bound(reports[1:] or reports),
            staleness=_merged([report.staleness for report in reports]),
            batch_size=_merged([report.batch_size for report in reports]),
            window=window,
            success=(sum(seen[:window]) / window, sum(seen[-window:]) / window) if seen else None,
            ledger=ledger,
        )

    @property
    def env_steps_per_second(self) -> float:
        """Environment steps trained for the first time, per second: the throughput that counts."""
        return self.env_steps / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        ledger = self.ledger
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "env_steps": self.env_steps,
            "env_steps_per_second": self.env_steps_per_second,
            "busy": self.busy,
            "bound": None if self.bound is None else {"part": self.bound.part, "share": self.bound.share},
            "staleness": self.staleness.as_dict(),
            "batch_size": self.batch_size.as_dict(),
            "success": None
            if self.success is None
            else dict(zip(("first", "last"), self.success, strict=True)),
            "trajectories": {
                "produced": ledger.produced,
                "trained": ledger.trained,
                "in_flight": ledger.in_flight,
                "refused": dict(ledger.refused),
            },
        }


def _bound(reports: Sequence[StepReport]) -> Diagnosis | None:
    seconds = sum(report.seconds for report in reports)
    if not seconds:
        return None
    return Diagnosis.of(
        {name: sum(r.busiest[name] * r.seconds for r in reports) / seconds for name in reports[0].busiest}
    )


def _merged(spreads: Sequence[Spread]) -> Spread:
    total = Spread()
    for spread in spreads:
        total.merge(spread)
    return total
