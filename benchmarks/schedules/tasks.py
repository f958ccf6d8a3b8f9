"""What `async.train.balance=tasks` should gain in the bench: `python -m benchmarks.schedules.tasks`.

Nothing is measured: both modes are planned, over the steps that the bench measures, from the service times of
each scenario and the costs that were fitted to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlinf_async.experiments.bench.cell import TAIL
from rlinf_async.experiments.bench.command import STEPS, WARM_UP
from rlinf_async.experiments.bench.modes import MODES
from rlinf_async.experiments.bench.scenarios import EMULATED, Scenario
from rlinf_async.experiments.plan.bench import FITTED, Steps, predict_cell

WINDOW = Steps(warm_up=WARM_UP, measured=STEPS, batches=WARM_UP + STEPS + TAIL)


def gains(scenarios: Iterable[Scenario] = EMULATED) -> Iterator[tuple[str, float, float]]:
    """(scenario, fresh environment steps per second of `full`, of `full-tasks`), where both can run."""
    for scenario in scenarios:
        if "full-tasks" not in scenario.without:
            full, tasks = (
                predict_cell(scenario, MODES[name], FITTED, WINDOW) for name in ("full", "full-tasks")
            )
            yield scenario.name, full, tasks


def main() -> None:
    """Print a line for each scenario."""
    for name, full, tasks in gains():
        print(f"{name:<14} full {full:7.0f}  full-tasks {tasks:7.0f}  ratio {tasks / full:.2f}", flush=True)


if __name__ == "__main__":
    main()
