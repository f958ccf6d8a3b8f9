"""Throughput over accelerators, as a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinf_async.lab.chart import finish, new_figure, save
from rlinf_async.lab.plan.prediction import Prediction


def draw(placed: Mapping[int, Sequence[Prediction]], path: Path) -> Path:
    """Draw every placement on each number of accelerators, and linear growth of the fastest.

    Raises:
        ValueError: matplotlib is not installed, or nothing was placed.
    """
    best = {gpus: ones[0].steps_per_s.middle for gpus, ones in placed.items() if ones}
    if not best:
        raise ValueError("no placement divides the environments and the batch: there is nothing to draw")
    kinds: dict[str, dict[int, float]] = defaultdict(dict)
    for gpus, ones in placed.items():
        for one in ones:
            kinds[one.name.partition(", ")[2]][gpus] = one.steps_per_s.middle
    figure = new_figure(6.0, 3.6)
    panel = figure.subplots()
    least = min(best)
    linear = [best[least] * gpus / least for gpus in sorted(best)]
    panel.plot(sorted(best), linear, linestyle=":", color="grey", label="linear")
    for name, rates in kinds.items():
        panel.plot(sorted(rates), [rates[gpus] for gpus in sorted(rates)], marker="o", label=name)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(sorted(best), [str(gpus) for gpus in sorted(best)])
    panel.set_xlabel("GPUs", fontsize=8)
    panel.set_ylabel("environment steps per second", fontsize=8)
    panel.legend(fontsize=7)
    finish(panel, "planned")
    save(figure, path)
    return path
