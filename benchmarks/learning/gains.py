"""Compare the learning of asynchronous and synchronous runs, setting by setting.

This measure was chosen after the runs, in place of the preregistered area and final success: an area contains
the success of the starting policy, which no way to train can lose. The measure is the area above the start,
where the start is the success of the first batch of the seed's synchronous run. A setting has one value per
seed, asynchronous minus synchronous, as a share of the synchronous mean. Two claims are possible:

    less       a two-sided paired t-test finds a difference
    the same   two one-sided tests (TOST) find that the difference is within the margin

Both are tested by Holm at 5 % over all complete settings of a group: the toy, the pair of tasks of unequal
speed, the single tasks under RLinf. A setting that is less or more by its own test, but not by Holm, is
reported as "before Holm". A setting without a claim is not shown on a page, as its seeds were too few. A
further column has the difference to the synchronous curve moved by the lag, the part that the delay does not
explain, with an interval and without a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import tables
from benchmarks.learning.preregistration import SIDE_NAMES, Preregistration, Setting
from benchmarks.learning.statistics import Tost, holm, learned, moved, tost_paired
from benchmarks.learning.verdicts import Row, rows

GROUP_NAMES = ("a toy", "two tasks of unequal speed", "single tasks under RLinf")


@dataclass(frozen=True)
class Gain:
    """The tests and claims of one complete setting."""

    row: Row
    total: Tost
    """Asynchronous minus synchronous runs."""
    beyond_delay: Tost
    """Asynchronous runs minus the synchronous curves moved by the lag."""
    differs: bool
    same: bool

    @property
    def group(self) -> str:
        return group_of(self.row.setting)

    @property
    def claim(self) -> str:
        """The words of the claim; empty without one."""
        low, high = self.total.ci_low or 0.0, self.total.ci_high or 0.0
        words = []
        if self.differs or low > 0 or high < 0:
            words.append("less" if self.total.difference < 0 else "more")
            words += [] if self.differs else ["before Holm"]
        words += [f"the same within {self.total.margin:.0%}"] if self.same else []
        return ", ".join(words)

    def as_json(self) -> dict[str, Any]:
        """Return a row of gains.json."""
        return {
            "setting": self.row.setting.name,
            "host": self.row.setting.host,
            "group": self.group,
            "seeds": list(self.row.seeds),
            "margin": self.total.margin,
            **numbers(self.total, ""),
            **numbers(self.beyond_delay, "beyond_delay_"),
            "claim": self.claim,
        }


def group_of(setting: Setting) -> str:
    """Return the name of the setting's group; the settings of a group are tested together."""
    if setting.host == "rlinf":
        return GROUP_NAMES[2]
    return GROUP_NAMES[0] if setting.task.startswith("points") else GROUP_NAMES[1]


def gains(stated: Preregistration) -> list[Gain]:
    """Return the gain of every complete setting, in the order of the preregistration."""
    complete = [row for row in rows(stated) if row.complete and len(row.seeds) > 1]
    tests = [_tests(row, stated.statistic["margin"]) for row in complete]
    claims: dict[int, tuple[bool, bool]] = {}
    for group in GROUP_NAMES:
        places = [place for place, row in enumerate(complete) if group_of(row.setting) == group]
        differs = holm([tests[place][0].p_difference or 0.0 for place in places])
        same = holm([tests[place][0].p_value or 0.0 for place in places])
        claims |= dict(zip(places, zip(differs, same, strict=True), strict=True))
    return [
        Gain(row, *test, *claims[place])
        for place, (row, test) in enumerate(zip(complete, tests, strict=True))
    ]


def _tests(row: Row, margin: float) -> tuple[Tost, Tost]:
    curves, others = (list(row.setting.success(side, row.seeds).values()) for side in SIDE_NAMES)
    later = [moved(curve, row.setting.lag) for curve in curves]
    sync, delayed, other = learned(curves, later, others)
    return tost_paired(sync, other, margin), tost_paired(delayed, other, margin)


def numbers(test: Tost, prefix: str) -> dict[str, float]:
    """Return a difference and its interval, with keys that begin with `prefix`."""
    values = {"difference": test.difference, "ci_low": test.ci_low, "ci_high": test.ci_high}
    return {f"{prefix}{name}": round(float(value or 0.0), 5) for name, value in values.items()}


def write(found: Sequence[Gain]) -> list[Path]:
    """Write gains.json, and gains.md with every complete setting."""
    return [
        tables.write("gains.json", json.dumps([gain.as_json() for gain in found], indent=1) + "\n"),
        tables.write(
            "gains.md",
            "# What was learned, by setting\n",
            "Generated by `python -m benchmarks.learning preregistered --report`; what is tested stands in "
            "[gains.py](../gains.py). Where the last column is empty, nothing is claimed.\n",
            table(found),
        ),
    ]


def table(found: Sequence[Gain]) -> str:
    """Return a Markdown table with a line per setting."""
    lines = [
        [
            gain.row.setting.name,
            gain.group,
            str(len(gain.row.seeds)),
            tables.share(gain.total),
            tables.share(gain.beyond_delay),
            tables.number(gain.row.mean_lag, 2),
            tables.number(gain.row.streamed_share, 2),
            gain.claim,
        ]
        for gain in found
    ]
    head = "setting|group|seeds|of what was learned|not explained by the delay|lag|streamed|claim"
    return tables.markdown(head.split("|"), lines)


def page(found: Sequence[Gain]) -> str:
    """Return the table of the settings with a claim, and the numbers of claims and settings of each group."""
    told = [gain for gain in found if gain.claim]
    counts: Mapping[str, tuple[int, int]] = {
        group: (sum(gain.group == group for gain in told), sum(gain.group == group for gain in found))
        for group in GROUP_NAMES
    }
    said = "; ".join(f"{group}, {some} of {every}" for group, (some, every) in counts.items())
    return f"Settings of which something is claimed: {said}.\n\n{table(told)}"
