"""The rows of the preregistered experiment, computed from the preregistration and the raw results alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.learning import cells
from benchmarks.learning.preregistration import SIDE_NAMES, Preregistration, Setting, Side
from benchmarks.learning.statistics import MEASURE_NAMES, Tost, compared, one_batch


@dataclass(frozen=True)
class Row:
    """The result of one setting, from the seeds with two runs that count."""

    setting: Setting
    seeds: tuple[int, ...]
    uncounted: tuple[str, ...]
    """Runs that missed the intended lag or streaming of their setting, with their values."""
    tests: Mapping[str, Tost]
    """Tests by measure, as shares of the synchronous mean; empty without a pair."""
    mean_lag: float | None
    streamed_share: float | None
    one_batch: float | None
    """Cost of a delay of one batch alone, as a share of the synchronous area."""

    @property
    def complete(self) -> bool:
        """True if every seed was run, including seeds that do not count."""
        return len(self.seeds) + len(self.uncounted) == len(self.setting.seeds)

    @property
    def verdict(self) -> str:
        """The name of the preregistered sentence for the result."""
        if not self.complete or not self.tests:
            return "incomplete"
        verdicts = {self.tests[measure].verdict for measure in MEASURE_NAMES}
        if verdicts == {"equivalent"}:
            return "equivalent"
        for decided in ("worse", "better"):
            if decided in verdicts and verdicts <= {decided, "equivalent"}:
                return decided
        return "undecided"

    def as_json(self, margin: float) -> dict[str, Any]:
        """Return the row of preregistered.json; `equivalent` is null while runs are missing."""
        area, final = (self.tests.get(measure) for measure in MEASURE_NAMES)
        return {
            "task": self.setting.task,
            "algorithm": self.setting.algorithm,
            "setting": self.setting.name,
            "host": self.setting.host,
            "seeds": list(self.seeds),
            "seeds_planned": list(self.setting.seeds),
            "margin": margin,
            **_interval(area, ""),
            **_interval(final, "final_"),
            "equivalent": self.verdict == "equivalent" if self.complete and self.tests else None,
            "verdict": self.verdict,
            "mean_lag": _rounded(self.mean_lag),
            "streamed_share": _rounded(self.streamed_share),
            "one_batch_of_delay": _rounded(self.one_batch),
        }


def rows(stated: Preregistration) -> list[Row]:
    """Return a row for each setting, with or without runs, in the order of the file."""
    return [_row(stated, setting) for setting in stated.settings]


def _row(stated: Preregistration, setting: Setting) -> Row:
    pairs: dict[int, tuple[Any, Any]] = {}
    uncounted = []
    for seed in setting.seeds:
        synchronous, asynchronous = (_read(stated, setting, side, seed) for side in SIDE_NAMES)
        if synchronous is None or asynchronous is None:
            continue
        if short := shortfall(stated, setting, asynchronous):
            uncounted.append(f"{setting.name}, seed {seed}: {short}")
        else:
            pairs[seed] = synchronous, asynchronous
    counted = [pair[1] for pair in pairs.values()]
    return Row(
        setting=setting,
        seeds=tuple(pairs),
        uncounted=tuple(uncounted),
        tests=compared(
            *([pair[side]["success"] for pair in pairs.values()] for side in (0, 1)),
            margin=stated.statistic["margin"],
            final_share=stated.statistic["final_share"],
            alpha=stated.statistic["alpha"],
        ),
        mean_lag=_mean([np.mean(run["mean_lag"]) for run in counted]),
        streamed_share=_mean([np.mean(run["streamed_share"]) for run in counted]),
        one_batch=_mean([one_batch(pair[0]["success"]) for pair in pairs.values()]),
    )


def shortfall(stated: Preregistration, setting: Setting, run: Mapping[str, Any]) -> str:
    """Return the reason why an asynchronous run does not count; empty if it counts."""
    share = stated.validity["share"]
    wanted = {"mean_lag": setting.lag_to_have, "streamed_share": stated.streamed_share(setting)}
    return ", ".join(
        f"{name} {np.mean(run[name]):.2f} of {value:.2f}"
        for name, value in wanted.items()
        if np.mean(run[name]) < share * value
    )


def _read(stated: Preregistration, setting: Setting, side: Side, seed: int) -> dict[str, Any] | None:
    """Return the result of a run; None if there is none.

    Raises:
        ValueError: the run had other settings than the file states now.
    """
    stored = setting.result(side, seed)
    if stored is not None and stored["run"] != json.loads(json.dumps(stated.record(setting, side, seed))):
        path = setting.path(side, seed)
        raise ValueError(f"{path.name} was run with other settings than preregistration.yaml states")
    return stored


def others(stated: Preregistration) -> list[str]:
    """Return the names of results that belong to no setting of the file."""
    folder = cells.RESULTS_FOLDER / "preregistered"
    known = {
        setting.path(side, seed)
        for setting in stated.settings
        for seed in setting.seeds
        for side in SIDE_NAMES
    }
    strangers = [path.name for path in folder.glob("*.json") if path not in known]
    policies = stated.corrections["policies"].values()
    of_corrections = [f"{prefix}-lag" for prefix in stated.prefixes]
    of_corrections += [f"sync-{policy['task']}-" for policy in policies if "task" in policy]
    return sorted(name for name in strangers if not name.startswith(tuple(of_corrections)))


def _interval(tost: Tost | None, prefix: str) -> dict[str, float | None]:
    values = (None,) * 3 if tost is None else (tost.difference, tost.ci_low, tost.ci_high)
    names = ("difference", "ci_low", "ci_high")
    return {f"{prefix}{name}": _rounded(value) for name, value in zip(names, values, strict=True)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 5)


def _mean(values: Sequence[Any]) -> float | None:
    return float(np.mean(values)) if len(values) else None
