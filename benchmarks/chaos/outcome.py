"""What a run came to, from its run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlinf_async.lab.process import OVERDUE_STATUS
from rlinf_async.observe.failures import count_failures
from rlinf_async.observe.run_dir import RunDir

WARM_UP = 3
"""Steps at the beginning that are not measured; nobody is killed in the first of them."""
RESTARTS = ("env", "env_worker", "inference")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run; everything but `killed` is read from what it has written."""

    status: int
    hung: bool
    steps: int
    env_steps_per_second: float | None
    """Fresh ones, over the steps after the warm-up."""
    unaccounted: int | None
    """Trajectories that are in no column of the books; None if the run has written none."""
    refused: Mapping[str, int]
    staleness: float
    """The largest of any sample."""
    killed: Mapping[str, int]
    restarts: Mapping[str, int]
    """What the run says of itself: environments built anew, env workers and inference ranks started again."""
    faults: int
    """Lines of `failures.jsonl`."""

    @classmethod
    def of(cls, directory: Path, *, status: int, killed: Sequence[str]) -> Outcome:
        run = RunDir(directory)
        metrics = run.read_metrics()
        books: dict[str, Any] = {}
        if run.summary.exists():
            books = json.loads(run.summary.read_text())["trajectories"]
        measured = metrics[WARM_UP:]
        seconds = sum(step["async/step_seconds"] for step in measured)
        return cls(
            status=status,
            hung=status == OVERDUE_STATUS,
            steps=len(metrics),
            env_steps_per_second=sum(s["async/env_steps"] for s in measured) / seconds if seconds else None,
            unaccounted=_unaccounted(books),
            refused=dict(books.get("refused", {})),
            staleness=max((step["async/staleness/max"] for step in metrics), default=0.0),
            killed={kind: list(killed).count(kind) for kind in dict.fromkeys(killed)},
            restarts={
                name: int(sum(step.get(f"async/restarts/{name}", 0) for step in metrics)) for name in RESTARTS
            },
            faults=count_failures(directory).kinds.total(),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _unaccounted(books: Mapping[str, Any]) -> int | None:
    if not books:
        return None
    return int(books["produced"] - books["trained"] - books["in_flight"] - sum(books["refused"].values()))
