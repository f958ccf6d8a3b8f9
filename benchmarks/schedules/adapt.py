"""What `async.adapt=true` should gain: `python -m benchmarks.schedules.adapt`, or that and scenarios.

Nothing is measured: every cell is planned, from the service times of each scenario and the costs that were
fitted to one of them. All settings of a scenario meet the same draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlinf_async.core.adaptation import SETTLING
from rlinf_async.experiments.bench.modes import MODES
from rlinf_async.experiments.bench.scenarios import SCENARIOS, Scenario
from rlinf_async.experiments.plan.bench import FITTED, SEED, settings_of, times_of
from rlinf_async.hosts.virtual.run import PlannedRun, predict

SHOWN = (
    *((name, "full") for name in ("balanced", "train-bound", "libero", "long-tail", "resets", "maniskill")),
    *((name, "full-scorer") for name in ("balanced", "train-bound", "long-tail", "resets")),
)
"""Scenarios and the modes that are planned in them."""
BATCHES = 120
Cell = tuple[str, bool, int, float | None]
"""What it is called, whether it adapts, the bound or its ceiling, and the wait in ms."""
CELLS: tuple[Cell, ...] = (
    ("bound 1", False, 1, None),
    ("bound 2", False, 2, None),
    ("adapt", True, 2, None),
)
WAITING: tuple[Cell, ...] = (
    ("wait 20 ms", False, 1, 20.0),
    ("adapt, wait up to 20 ms", True, 2, 20.0),
)
"""Of `libero`, whose inference is idle for most of the time."""


def planned(scenario: Scenario, mode: str, cell: Cell) -> PlannedRun:
    """A run of `mode` in `scenario` with the settings of `cell`."""
    _, adapt, bound, wait_ms = cell
    settings = settings_of(scenario, MODES[mode], BATCHES)
    asynchrony = settings.asynchrony
    asynchrony = replace(
        asynchrony,
        adapt=adapt,
        train=replace(asynchrony.train, max_staleness=bound),
        rollout=replace(asynchrony.rollout, max_wait_ms="auto" if wait_ms is None else wait_ms),
    )
    return predict(replace(settings, asynchrony=asynchrony), times_of(scenario, FITTED, seed=SEED))


def throughput(scenario: Scenario, run: PlannedRun, *, since: int) -> float:
    """Fresh environment steps per second in all steps after `since`."""
    ends = run.trained_at
    return scenario.samples * scenario.chunk * (len(ends) - since) / (ends[-1] - ends[since - 1])


def rows(scenario: Scenario, mode: str) -> Iterator[tuple[str, float, float, float, dict[str, float]]]:
    """Of each cell: its name, throughput after the start and in the second half, mean staleness, the end."""
    for cell in (*CELLS, *(WAITING if scenario.name == "libero" else ())):
        run = planned(scenario, mode, cell)
        whole, half = (throughput(scenario, run, since=since) for since in (SETTLING, BATCHES // 2))
        staleness = sum(report.staleness.mean for report in run.reports) / len(run.reports)
        yield cell[0], whole, half, staleness, dict(run.reports[-1].adapt)


def main(names: Sequence[str] = ()) -> None:
    """Print a line for each setting, of all scenarios or of those."""
    for name, mode in SHOWN:
        if names and name not in names:
            continue
        for cell, whole, half, staleness, end in rows(SCENARIOS[name], mode):
            ended = ", ".join(f"{key.rpartition('/')[2]} {value:g}" for key, value in end.items())
            speed = f"{whole:7.1f}  second half {half:7.1f}"
            print(f"{name:<12} {mode:<12} {cell:<24} {speed}  staleness {staleness:.2f}  {ended}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
