"""What some settings should gain in the bench: `python -m benchmarks.schedules.gains`.

Nothing is measured: modes are planned, over the steps that the bench measures, from the service times of each
scenario and the costs that were fitted to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlinf_async.experiments.bench.cell import TAIL
from rlinf_async.experiments.bench.command import STEPS, WARM_UP
from rlinf_async.experiments.bench.modes import MODES
from rlinf_async.experiments.bench.scenarios import EMULATED, Scenario
from rlinf_async.experiments.plan.bench import FITTED, Steps, predict_cell

WINDOW = Steps(warm_up=WARM_UP, measured=STEPS, batches=WARM_UP + STEPS + TAIL)


PLANNED = ("full-tasks", "full-reset-ahead")
"""`async.train.balance=tasks` and `async.rollout.reset_ahead=true`, beside `full`."""


def gains(mode: str, scenarios: Iterable[Scenario] = EMULATED) -> Iterator[tuple[str, float, float]]:
    """(scenario, fresh environment steps per second of `full`, of `mode`), where both can run."""
    for scenario in scenarios:
        if mode not in scenario.without:
            full, other = (predict_cell(scenario, MODES[name], FITTED, WINDOW) for name in ("full", mode))
            yield scenario.name, full, other


def main() -> None:
    """Print a line for each scenario in each mode."""
    for mode in PLANNED:
        for name, full, other in gains(mode):
            print(f"{name:<14} full {full:7.0f}  {mode} {other:7.0f}  ratio {other / full:.2f}", flush=True)


if __name__ == "__main__":
    main()
