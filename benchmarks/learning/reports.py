"""Write the tables in `results/`; each depends on the raw data alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.learning import data, tables
from benchmarks.learning.cells import Curve
from benchmarks.learning.data import (
    EQUIVALENCE_MARGIN,
    HOST_NAMES,
    SUCCESS_LEVEL,
    Comparison,
    Results,
    compared,
    comparisons,
    missing,
    on_press,
    paired,
)
from benchmarks.learning.statistics import (
    WINDOW_BATCHES,
    area_under_curve,
    delayed,
    env_steps_to,
    final_success,
    median,
    seconds_to,
)

AUC_SENTENCE = "AUC is the success rate averaged over env steps, that is, over all episodes of a run."
PAIRS_SENTENCE = (
    "Intervals are of 90 %, of paired differences; "
    f"the margin is {EQUIVALENCE_MARGIN:.0%} of the mean of `off`."
)


def equivalence(results: Results) -> list[Path]:
    """Write the comparison of `full` with synchronous training: JSON for programs, Markdown for people."""
    found = comparisons(results)
    rows = [comparison.as_row() for comparison in found]
    gaps = [name for host in ("local", "rlinf") for name in missing(partial(data.equivalence, host), results)]
    return [
        tables.write("equivalence.json", json.dumps(rows, indent=2) + "\n"),
        tables.write(
            "equivalence.md",
            "# Synchronous training against `full`\n",
            f"{AUC_SENTENCE} Difference is full − sync, over pairs that share seed, cloned start and goals. "
            f"{PAIRS_SENTENCE} "
            "Equivalent means that the interval lies inside the margin (two one-sided tests, 5 % each).\n",
            _equivalence_table(found),
            _in_words(found),
            f"## To {SUCCESS_LEVEL:.0%} success\n",
            f"Medians over seeds of when the mean of {WINDOW_BATCHES} batches in a row reaches "
            f"{SUCCESS_LEVEL:.0%}; {tables.NO_VALUE} where half of the seeds or more do not. "
            "Ratios are of the medians, sync / full: above 1, `full` is faster. Seconds are those "
            "of a machine that other runs share, and "
            "say less than env steps.\n",
            _time_table(found),
            _picture("Success over env steps", "equivalence.png", found),
            tables.listing("Runs that are missing", gaps),
        ),
    ]


def _equivalence_table(found: list[Comparison]) -> str:
    head = "task|algorithm|host|seeds|sync AUC|full AUC|difference|90 % interval|margin|p|verdict|final sync"
    rows = []
    for one in found:
        tost = one.tost
        finals = one.reduced(final_success, np.mean)
        rows.append(
            [
                *_setting(one),
                str(tost.pairs),
                tables.number(tost.sync_mean),
                tables.number(tost.full_mean),
                tables.signed(tost.difference),
                tables.interval(tost),
                tables.number(tost.margin),
                tables.number(tost.p_value),
                tost.verdict,
                *map(tables.percent, finals),
                tables.number(one.reduced(_staleness, np.mean)[1], 2),
            ]
        )
    return tables.markdown([*head.split("|"), "final full", "staleness of full"], rows)


def _time_table(found: list[Comparison]) -> str:
    head = "task|algorithm|host|env steps sync|full|ratio|seconds sync|full|ratio|reached sync|full"
    rows = []
    for one in found:
        if one.host == "both":  # seconds of the two hosts are not comparable
            continue
        steps = one.reduced(lambda curve: env_steps_to(curve, SUCCESS_LEVEL), median)
        seconds = one.reduced(lambda curve: seconds_to(curve, SUCCESS_LEVEL), median)
        reached = one.reduced(lambda curve: env_steps_to(curve, SUCCESS_LEVEL) is not None, sum)
        rows.append(
            [
                *_setting(one),
                *map(tables.thousands, steps),
                tables.ratio(*steps),
                *map(tables.thousands, seconds),
                tables.ratio(*seconds),
                *(f"{count} of {len(one.pairs)}" for count in reached),
            ]
        )
    return tables.markdown(head.split("|"), rows)


def _in_words(found: list[Comparison]) -> str:
    """Return the verdicts of the table in sentences."""
    parts = []
    for host, where in {"local": "On the local host", "rlinf": "On RLinf", "both": "Together"}.items():
        verdicts: dict[str, list[str]] = {}
        shares = []
        for one in found:
            if one.host == host:
                verdicts.setdefault(one.tost.verdict, []).append(f"{one.task} {one.algorithm.upper()}")
                shares.append(one.tost.difference / one.tost.sync_mean if one.tost.sync_mean else np.nan)
        if verdicts:
            told = "; ".join(
                f"{verdict} {len(names)} ({', '.join(names)})" for verdict, names in verdicts.items()
            )
            share = f"{len(shares)} of {len(data.TASKS_AND_ALGORITHMS)} settings with pairs"
            reach = " to ".join(f"{end:+.1%}" for end in sorted({min(shares), max(shares)}))
            parts.append(f"{where}, {share}: {told}; mean differences of {reach} of the synchronous means.")
    if any(one.tost.verdict == "undecided" for one in found):
        parts.append(
            "Undecided: the interval reaches beyond the margin, which shows neither a difference nor none."
        )
    return " ".join(parts) + "\n"


def staleness(results: Results) -> list[Path]:
    """Write the table of lags and corrections, each compared with lag 0."""
    base = on_press(results, "off")
    rows = []
    for lag in data.STALENESS_LAGS:
        for correction in data.CORRECTION_NAMES if lag else (tables.NO_VALUE,):
            curves = on_press(results, f"lag{lag}-{correction}" if lag else "off")
            if curves:
                size, area, final, stale = _figures(curves)
                worst = tables.percent(min(map(final_success, curves.values())))
                against = [*_difference(base, curves), _of_delay(base, curves, lag)]
                comparison = against if lag else [tables.NO_VALUE] * 3
                rows.append([str(lag), correction, size, area, *comparison, final, worst, stale])
    head = (
        "lag|correction|seeds|AUC ± sd|to lag 0|90 % interval|of that, delay|final success|worst seed|"
        "mean staleness"
    )
    return [
        tables.write(
            "staleness.md",
            "# A fixed lag, by correction\n",
            f"{data.PRESS_TASK}, PPO, {data.BATCH_COUNT} batches, local host. {AUC_SENTENCE} Final success "
            f"is that of the last {WINDOW_BATCHES} batches; sd and worst are between seeds. Intervals are of "
            "90 %, of differences paired by seed. Delay is what the runs of lag 0 would lose if they learnt "
            "as well, as many batches later as the lag. The mean staleness is over all batches; the "
            "first have "
            "no policy as old as the lag.\n",
            tables.markdown(head.split("|"), rows),
            _picture("AUC and final success over lag", "staleness.png", rows),
            tables.listing("Runs that are missing", missing(data.staleness, results)),
        )
    ]


REPORT_BY_NAME: dict[str, Callable[[Results], list[Path]]] = {
    "equivalence": equivalence,
    "staleness": staleness,
}


def _figures(curves: Mapping[int, Curve]) -> tuple[str, str, str, str]:
    """Return the number of curves, their area, final success and staleness."""
    values = list(curves.values())
    return (
        str(len(values)),
        tables.spread([area_under_curve(curve) for curve in values]),
        tables.percent(float(np.mean([final_success(curve) for curve in values]))),
        tables.number(float(np.mean([_staleness(curve) for curve in values])), 2),
    )


def _of_delay(base: Mapping[int, Curve], curves: Mapping[int, Curve], lag: int) -> str:
    """Return the part of the difference to `base` that a delay of `lag` batches explains."""
    losses = [
        area_under_curve(delayed(base[seed], lag)) - area_under_curve(base[seed])
        for seed in base.keys() & curves.keys()
    ]
    return tables.signed(float(np.mean(losses))) if losses else tables.NO_VALUE


def _staleness(curve: Curve) -> float:
    return float(np.mean(curve.staleness))


def _setting(one: Comparison) -> list[str]:
    return [one.task, one.algorithm, HOST_NAMES[one.host]]


def _difference(base: dict[int, Curve], curves: dict[int, Curve]) -> list[str]:
    """Return the difference to the base and its interval, over the seeds that both have."""
    pairs = paired(base, curves)
    if not pairs:
        return [tables.NO_VALUE] * 2
    tost = compared(pairs, task="", algorithm="", host="local").tost
    return [tables.signed(tost.difference), tables.interval(tost)]


def _picture(shown: str, name: str, rows: Sequence[object]) -> str:
    """Return a reference to a picture; empty without rows, as then no picture is drawn."""
    return f"![{shown}]({name})\n" if rows else ""
