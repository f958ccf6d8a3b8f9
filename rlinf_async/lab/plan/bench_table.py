"""The measurements of a bench next to the predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from rlinf_async.lab.bench.cell import TAIL_STEPS
from rlinf_async.lab.bench.command import WARM_UP
from rlinf_async.lab.bench.modes import BENCH_MODES
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.plan.bench import FITTED_COSTS, Costs, Steps, modelled, predict_cell
from rlinf_async.lab.table import screen

FITTED_HOST = "rlinf"
"""The host to whose runs the costs were fitted."""
TABLE_HEAD = ("scenario", "mode", "measured", "predicted", "off by")


def steps_of(measured: int) -> Steps:
    """The steps of a run of the bench, of which `measured` count."""
    return Steps(warm_up=WARM_UP, measured=measured, batches=WARM_UP + measured + TAIL_STEPS)


def predict_rows(
    rows: Iterable[Mapping[str, Any]], steps: Steps, costs: Costs = FITTED_COSTS
) -> list[dict[str, Any]]:
    """For each row of a bench that is modelled: `scenario`, `mode`, `measured`, `predicted` and `error`.

    Throughputs are fresh environment steps per second; the error is a share of what was measured.
    """
    predictions = []
    for row in rows:
        if "error" in row or row.get("host", FITTED_HOST) != FITTED_HOST:
            continue
        scenario, mode = SCENARIOS_BY_NAME[row["scenario"]], BENCH_MODES[row["mode"]]
        if not modelled(scenario, mode):
            continue
        measured, predicted = row["fresh_steps_per_s"], predict_cell(scenario, mode, costs, steps)
        predictions.append(
            {
                "scenario": scenario.name,
                "mode": mode.name,
                "measured": measured,
                "predicted": predicted,
                "error": predicted / measured - 1.0,
            }
        )
    return predictions


def show(predictions: Iterable[Mapping[str, Any]], console: Console) -> None:
    """A table, and below it how far off the predictions are."""
    predictions = list(predictions)
    if not predictions:
        console.print("none of these cells is predicted: their service times are not stated")
        return
    rows = [
        (
            one["scenario"],
            one["mode"],
            f"{one['measured']:,.0f}",
            f"{one['predicted']:,.0f}",
            f"{one['error']:+.1%}",
        )
        for one in predictions
    ]
    console.print(screen(TABLE_HEAD, rows, space=2))
    errors = [abs(one["error"]) for one in predictions]
    console.print(f"off by {sum(errors) / len(errors):.1%} on average, by {max(errors):.1%} at most")
