"""One line of a table of step times: the run, and how long its step took where that is known."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlinf_async.config.block import LEVEL_NAMES, MODE_LEVELS
from rlinf_async.config.checks import check_choice, check_keys
from rlinf_async.observe.files import read_regular

COLUMN_CHOICES = {
    "placement": ("collocated", "hybrid", "disaggregated"),
    "simulator": ("processes", "vectorised"),
    "overlap": ("epochs", "steps"),
    "channel": ("one", "none"),
    "calibrate": ("", "yes", "no"),
}
"""The words of the columns that have some."""
HOSTED_WITH_LEVEL_2 = 2
"""Batches of environments that a simulator hosts with level 2: one is stepped while the other is answered."""
MAX_TABLE_BYTES = 10_000_000


class Gpus(NamedTuple):
    """GPUs that have a part of the work; with hybrid and collocated placement the same ones have several."""

    simulators: int
    inference: int
    learner: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run on `gpus` GPUs. Columns are documented in docs/plan.md."""

    placement: str
    gpus: int
    envs: int
    """Environments on all GPUs together."""
    workload: str = ""
    """Rows of one workload have the same costs."""
    ratio: str = "1:1"
    """Rollout GPUs to learner GPUs; with hybrid placement simulator GPUs to inference GPUs."""
    mode: str = "off"
    epochs: int = 1
    """Rollout epochs in one step."""
    update_epochs: int = 1
    shards: int = 0
    """Batches of environments that a simulator GPU hosts; 0: two with level 2, else one."""
    simulator: str = "processes"
    share: float = -1.0
    """The simulator's share of a decision; below 0: half of it, and all of it if vectorised."""
    overlap: str = "epochs"
    """Whether training overlaps the later rollout epochs of its own step, or the next step."""
    channel: str = "one"
    """Whether all rollouts pass one process."""
    calibrate: str = ""
    step_s: float = 0.0
    """Seconds of a step; 0 where they are not known."""
    rollout_s: float = 0.0
    training_s: float = 0.0

    def __post_init__(self) -> None:
        for name, words in COLUMN_CHOICES.items():
            check_choice(name, getattr(self, name), words)
        for name, least in (("gpus", 1), ("envs", 1), ("epochs", 1), ("update_epochs", 1), ("shards", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("step_s", "rollout_s", "training_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name}={getattr(self, name)} must be a finite number of at least 0")
        if not self.share <= 1:
            raise ValueError(f"share={self.share} must be at most 1")
        self._levels()
        self.parts()

    @property
    def name(self) -> str:
        """The run in a word or two."""
        ratio = "" if self.placement == "collocated" else f" {self.ratio}"
        return f"{self.workload} {self.placement}{ratio}".strip()

    @property
    def levels(self) -> dict[str, bool]:
        """The levels that can be on: where learner and rollouts share GPUs, they do not compute at once."""
        apart = self.placement == "disaggregated"
        return {name: on and (apart or name == "rollout") for name, on in self._levels().items()}

    @property
    def synchronous(self) -> bool:
        """True if all levels are off, so that the step is the sum of its parts."""
        return not any(self._levels().values())

    @property
    def asynchronous_in_vain(self) -> bool:
        """True if a level is on for which learner and rollouts need GPUs of their own."""
        return self.levels != self._levels()

    @property
    def batches_hosted(self) -> int:
        """Batches of environments that a simulator GPU hosts."""
        return self.shards or (HOSTED_WITH_LEVEL_2 if self._levels()["rollout"] else 1)

    @property
    def simulator_share(self) -> float:
        """The simulator's share of a decision, 0 to 1."""
        if self.share >= 0:
            return self.share
        return 1.0 if self.simulator == "vectorised" else 0.5

    def _levels(self) -> dict[str, bool]:
        if self.mode in MODE_LEVELS:
            return dict(zip(LEVEL_NAMES, MODE_LEVELS[self.mode], strict=True))
        parts = self.mode.split("+")
        for part in parts:
            check_choice("mode", part, (*MODE_LEVELS, *LEVEL_NAMES))
        return {name: name in parts for name in LEVEL_NAMES}

    def parts(self) -> Gpus:
        """Return the GPUs of each part of the work.

        Raises:
            ValueError: the ratio does not divide them.
        """
        if self.placement == "collocated":
            return Gpus(self.gpus, self.gpus, self.gpus)
        first, second = self._split()
        if self.placement == "hybrid":
            return Gpus(first, second, self.gpus)
        return Gpus(first, first, second)

    def _split(self) -> tuple[int, int]:
        left, colon, right = self.ratio.partition(":")
        if not (colon and left.isdecimal() and right.isdecimal() and int(left) and int(right)):
            raise ValueError(f"ratio={self.ratio!r} must be two numbers of GPUs, such as 3:1")
        total = int(left) + int(right)
        if self.gpus % total:
            raise ValueError(f"ratio={self.ratio} does not divide gpus={self.gpus}")
        return self.gpus * int(left) // total, self.gpus * int(right) // total


def read_rows(path: Path) -> list[Row]:
    """Read a table: CSV with a line of names, or YAML, a list of rows or `rows` beside what they share.

    Raises:
        ValueError: it cannot be read; the message names the row and the column.
    """
    try:
        text = read_regular(path, limit=MAX_TABLE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    found = _of_yaml(text, path) if path.suffix in (".yaml", ".yml") else _of_csv(text)
    rows = []
    for number, cells in enumerate(found, start=1):
        try:
            rows.append(_row(cells))
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def _of_csv(text: str) -> list[Mapping[Any, Any]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return list(csv.DictReader(lines, skipinitialspace=True))


def _of_yaml(text: str, path: Path) -> list[Mapping[Any, Any]]:
    # This loader leaves all scalars text, as in CSV: YAML reads 3:1 as a number to the base of 60.
    try:
        content = yaml.BaseLoader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    shared: Mapping[str, Any] = {}
    if isinstance(content, Mapping):
        shared = {name: value for name, value in content.items() if name != "rows"}
        content = content.get("rows")
    if not isinstance(content, Sequence) or not all(isinstance(row, Mapping) for row in content):
        raise ValueError(f"{path} must be a list of rows, or have one under `rows`")
    return [{**shared, **row} for row in content]


def _row(cells: Mapping[Any, Any]) -> Row:
    if None in cells or None in cells.values():
        raise ValueError("it has another number of cells than the first line")
    check_keys("column", cells, Row)
    given: dict[str, Any] = {}
    for item in fields(Row):
        text = str(cells.get(item.name, "")).strip()
        if text:
            given[item.name] = _value(item.name, str(item.type), text)
        elif item.default is MISSING:
            raise ValueError(f"it has no {item.name}")
    return Row(**given)


def _value(name: str, kind: str, text: str) -> Any:
    try:
        return {"str": str, "int": int, "float": float}[kind](text)
    except ValueError:
        raise ValueError(f"{name}={text!r} must be a number") from None
