"""The ages of the trajectories that the learner accepted, and the places where they aged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.observe.spans import Process, Span


@dataclass(frozen=True)
class Staleness:
    """Trajectories by `(staleness, in flight)`, in policy versions.

    In flight is what was published while a rollout went on; the rest of its staleness passed between its
    last action and its training.
    """

    trajectories: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Staleness:
        """From the `accept` spans of all learner ranks."""
        counts: Counter[tuple[int, int]] = Counter()
        for span in spans:
            if span["kind"] == "accept":
                for size, staleness, in_flight in _pieces(span.get("pieces")):
                    counts[staleness, in_flight] += size
        return cls(counts)

    @property
    def total(self) -> int:
        return sum(self.trajectories.values())

    @property
    def mean_in_flight(self) -> float:
        return self._mean({at: at[1] for at in self.trajectories})

    @property
    def mean_in_queue(self) -> float:
        return self._mean({at: at[0] - at[1] for at in self.trajectories})

    def histogram(self) -> list[tuple[int, float, float, float]]:
        """`(staleness, fresh, in flight, in queue)`: shares of all trajectories, which sum to 1.

        Those of one staleness are divided in the proportion in which they aged in flight and in queue.
        """
        rows: dict[int, list[float]] = {}
        for (staleness, in_flight), count in self.trajectories.items():
            row, share = rows.setdefault(staleness, [0.0, 0.0, 0.0]), count / self.total
            if staleness == 0:
                row[0] += share
            else:
                row[1] += share * in_flight / staleness
                row[2] += share * (staleness - in_flight) / staleness
        return [(staleness, row[0], row[1], row[2]) for staleness, row in sorted(rows.items())]

    def _mean(self, ages: Mapping[tuple[int, int], int]) -> float:
        return (
            sum(age * self.trajectories[at] for at, age in ages.items()) / self.total if self.total else 0.0
        )


def _pieces(facts: object) -> list[tuple[int, int, int]]:
    """`(size, staleness, in flight)` of the pieces in a span; what is none is left out."""
    pieces = [each for each in facts if isinstance(each, list)] if isinstance(facts, list) else []
    whole = [each for each in pieces if len(each) == 6 and all(isinstance(number, int) for number in each)]
    return [(each[3], each[4], each[5]) for each in whole if each[3] > 0 and 0 <= each[5] <= each[4]]


def refused(run: RunFiles) -> dict[str, int] | None:
    """Trajectories that were refused, by reason; None if nothing is known."""
    ledger = run.summary.get("trajectories")
    if not isinstance(ledger, dict):
        processes = run.status.get("processes")
        ledger = processes.get(Process.COORDINATOR.numbered(0)) if isinstance(processes, dict) else None
    counts = ledger.get("refused") if isinstance(ledger, dict) else None
    if not isinstance(counts, dict):
        return None
    return {str(reason): count for reason, count in counts.items() if isinstance(count, int)}
