"""What asynchronous runs learned of what synchronous ones learned, setting by setting.

Read after the runs, in the place of the preregistered area and final success: an area contains what the
policy could do already, which no way to train can lose. The measure is the area above the start, the success
of the first batch of the synchronous run of a seed. A setting has one value per seed, asynchronous minus
synchronous, as a share of the synchronous mean; and of it two things may be claimed:

    less       a two-sided paired t-test finds a difference
    the same   two one-sided tests (TOST) find that it is within the margin

each by Holm at 5 % over all complete settings of its group: the toy, the pair of tasks of unequal speed, the
single tasks under RLinf. A setting that would be less or more by itself, and is not by Holm, is told as that;
one of which nothing holds is not told on a page, as its seeds were too few. Beside it stands the difference
to the synchronous curve moved by the lag, which is what the delay does not explain; it has an interval and no
verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import tables
from benchmarks.learning.preregistration import SIDES, Preregistration, Setting
from benchmarks.learning.statistics import Tost, holm, learned, moved, tost_paired
from benchmarks.learning.verdicts import Row, rows

GROUPS = ("a toy", "two tasks of unequal speed", "single tasks under RLinf")


@dataclass(frozen=True)
class Gain:
    """What is known of one complete setting."""

    row: Row
    total: Tost
    """Against the synchronous runs."""
    beyond_delay: Tost
    """Against the synchronous curves, moved by the lag."""
    differs: bool
    same: bool

    @property
    def group(self) -> str:
        return group_of(self.row.setting)

    @property
    def claim(self) -> str:
        """The words for it; empty where nothing is claimed."""
        low, high = self.total.ci_low or 0.0, self.total.ci_high or 0.0
        words = []
        if self.differs or low > 0 or high < 0:
            words.append("less" if self.total.difference < 0 else "more")
            words += [] if self.differs else ["before Holm"]
        words += [f"the same within {self.total.margin:.0%}"] if self.same else []
        return ", ".join(words)

    def as_json(self) -> dict[str, Any]:
        """A row of gains.json."""
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
    """The settings that are tested together."""
    if setting.host == "rlinf":
        return GROUPS[2]
    return GROUPS[0] if setting.task.startswith("points") else GROUPS[1]


def gains(stated: Preregistration) -> list[Gain]:
    """Of every complete setting, in the order of the file."""
    complete = [row for row in rows(stated) if row.complete and len(row.seeds) > 1]
    tests = [_tests(row, stated.statistic["margin"]) for row in complete]
    claims: dict[int, tuple[bool, bool]] = {}
    for group in GROUPS:
        places = [place for place, row in enumerate(complete) if group_of(row.setting) == group]
        differs = holm([tests[place][0].p_difference or 0.0 for place in places])
        same = holm([tests[place][0].p_value or 0.0 for place in places])
        claims |= dict(zip(places, zip(differs, same, strict=True), strict=True))
    return [
        Gain(row, *test, *claims[place])
        for place, (row, test) in enumerate(zip(complete, tests, strict=True))
    ]


def _tests(row: Row, margin: float) -> tuple[Tost, Tost]:
    curves, others = (
        [json.loads(row.setting.path(side, seed).read_text())["success"] for seed in row.seeds]
        for side in SIDES
    )
    later = [moved(curve, row.setting.lag) for curve in curves]
    sync, delayed, other = learned(curves, later, others)
    return tost_paired(sync, other, margin), tost_paired(delayed, other, margin)


def numbers(test: Tost, prefix: str) -> dict[str, float]:
    """A difference and its interval, under keys that begin with `prefix`."""
    values = {"difference": test.difference, "ci_low": test.ci_low, "ci_high": test.ci_high}
    return {f"{prefix}{name}": round(float(value or 0.0), 5) for name, value in values.items()}


def write(found: Sequence[Gain]) -> list[Path]:
    """gains.json, and gains.md with every complete setting."""
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
    """One line per setting."""
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
    """The settings of which something is claimed, and how many there are of the others."""
    told = [gain for gain in found if gain.claim]
    counts: Mapping[str, tuple[int, int]] = {
        group: (sum(gain.group == group for gain in told), sum(gain.group == group for gain in found))
        for group in GROUPS
    }
    said = "; ".join(f"{group}, {some} of {every}" for group, (some, every) in counts.items())
    return f"Settings of which something is claimed: {said}.\n\n{table(told)}"
