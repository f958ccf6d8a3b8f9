"""What a lever should gain in the bench: `python -m benchmarks.schedules.levers full-tasks`.

Nothing is measured: `full` and the mode that adds the lever are planned, over the steps that the bench has,
from the service times of each scenario and the costs that were fitted to one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from rlinf_async.lab.bench.cell import TAIL_STEPS
from rlinf_async.lab.bench.command import STEPS, WARM_UP
from rlinf_async.lab.bench.modes import BENCH_MODES
from rlinf_async.lab.bench.scenarios import EMULATED_SCENARIOS, Scenario
from rlinf_async.lab.plan.bench import FITTED_COSTS, Steps, predict_cell

WINDOW = Steps(warm_up=WARM_UP, measured=STEPS, batches=WARM_UP + STEPS + TAIL_STEPS)
LEVERS = ("full-tasks", "full-scorer", "full-scorer-fine")


def gains(
    lever: str, scenarios: Iterable[Scenario] = EMULATED_SCENARIOS
) -> Iterator[tuple[str, float, float]]:
    """(scenario, fresh environment steps per second of `full`, of mode `lever`), where both can run."""
    for scenario in scenarios:
        if lever not in scenario.without:
            full, other = (
                predict_cell(scenario, BENCH_MODES[name], FITTED_COSTS, WINDOW) for name in ("full", lever)
            )
            yield scenario.name, full, other


def main() -> None:
    """Print a line for each scenario, of the levers that are named, or of all."""
    for lever in sys.argv[1:] or LEVERS:
        for name, full, other in gains(lever):
            print(f"{name:<14} full {full:7.0f}  {lever} {other:7.0f}  ratio {other / full:.2f}", flush=True)


if __name__ == "__main__":
    main()
