"""Writes what docs/rlinf-configs.md generates: what `full` does with RLinf's on-policy example configs.

    python docs/generate_rlinf_configs.py rlinf-v0.3=ROOT rlinf-main=ROOT rlinf-pr1365=ROOT

It takes the roots of checkouts of RLinf, and asks `docs/rlinf_examples.py` about each in a process of its
own, where `import rlinf` gives that checkout. Of other trees the page keeps what it says; the prose is left
as it is. If all are given, the digests of the configs are written where `rlinf-async compat` looks for them.
`python docs/generate_rlinf_configs.py $(python -m tests.checkouts)` takes those that tests find.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import BEGIN, END, fill

from rlinf_async.hosts.rlinf.checkout import KNOWN_EXAMPLES, digest, on_policy_examples

PAGE = Path(__file__).with_name("rlinf-configs.md")
SOURCES = Path(__file__).parents[1]
TREES = {"0.3": "05054318, 15 July", "main": "a3816b59, 22 August", "1365": "b8249189, 14 August"}
"""The commit of each, and its day in 2026."""
NAMES = {"rlinf-v0.3": "0.3", "rlinf-main": "main", "rlinf-pr1365": "1365"}
"""What they are called on a command line, and on the page."""
BEFORE = {"0.3": ("43", "34"), "main": ("45", "none"), "1365": ("none", "none")}
"""Per tree, how many `explain` accepted and how many really ran through RLinf's script for them, before
levels gave way to what they cannot serve and RLinf's asynchronous script and its main branch were served.
With pull request 1365 there were none until this package assembled trajectories by itself."""
NUMBERS = {"train": "1", "rollout": "2", "streamer": "3"}

Row = Mapping[str, Any]


def collect(checkouts: Mapping[str, Path]) -> dict[str, list[Row]]:
    """The rows of each tree, whose root is given; all are worked out at the same time.

    Raises:
        RuntimeError: one of the processes fails; with what it has said.
    """
    asked = [(tree, _ask(checkouts[tree])) for tree in TREES if tree in checkouts]
    return {tree: _rows(process) for tree, process in asked}


def _ask(checkout: Path) -> subprocess.Popen[str]:
    paths = [str(checkout), str(SOURCES), str(SOURCES / "rlinf_async" / "_hydra")]
    script = Path(__file__).with_name("rlinf_examples.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, str(script), str(checkout)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _rows(process: subprocess.Popen[str]) -> list[Row]:
    said, failed = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args!r} failed:\n{failed}")
    return [json.loads(line) for line in said.splitlines()]


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *lines))


def counts(columns: Mapping[str, Sequence[str]]) -> str:
    """How many configs there are, and what becomes of them: what `COUNTED` names, for each tree."""
    lines = zip(COUNTED, *columns.values(), strict=True)
    return table(["", *(f"RLinf {tree} ({TREES[tree]})" for tree in columns)], lines)


COUNTED = (
    "on-policy example configs",
    "accepted by RLinf itself on eight GPUs",
    "`full` was accepted before",
    "and really ran through the script that is documented",
    "**`full` is accepted now**",
    "with all three levels",
    "where level 3 streams",
    "with fewer levels",
    "refused, though RLinf accepts",
    "refused, as RLinf refuses",
)


def _counted(tree: str, rows: Sequence[Row]) -> list[str]:
    """The cells of a tree, one for each line of `COUNTED`."""

    def count(what: Any) -> str:
        return str(sum(map(what, rows)))

    return [
        count(lambda row: True),
        count(lambda row: row["stock"] is None),
        *BEFORE[tree],
        f"**{count(_accepted)}**",
        count(lambda row: _levels_of(row) == "1 2 3"),
        count(_streams),
        count(lambda row: _accepted(row) and _levels_of(row) != "1 2 3"),
        count(lambda row: not _accepted(row) and row["stock"] is None),
        count(lambda row: not _accepted(row) and row["stock"] is not None),
    ]


def configs(lines: Mapping[str, Iterable[tuple[str, ...]]]) -> str:
    """A line per config, one for all trees where nothing differs."""
    found: dict[tuple[str, ...], list[str]] = {}
    for tree, of_tree in lines.items():
        for line in of_tree:
            found.setdefault(line, []).append(tree)
    columns = ["config", "RLinf", "algorithm", "model", "simulator", "placement", "levels", "shards", "notes"]
    return table(columns, ([line[0], ", ".join(trees), *line[1:]] for line, trees in sorted(found.items())))


def _line(row: Row) -> tuple[str, ...]:
    shards = "-"
    if _accepted(row):
        said = row["facts"]["shards"]
        shards = f"{said['total']} x {said['environments_each']}"
    cells = (row["algorithm"], row["model"], row["environment"], row["placement"])
    return (f"`{row['name']}`", *cells, _levels_of(row) or "-", shards, _notes(row))


def _accepted(row: Row) -> bool:
    return row["refusal"] is None


def _levels_of(row: Row) -> str:
    """The levels that are on, such as `1 2 3`."""
    levels = row["facts"]["levels"] if _accepted(row) else {}
    return " ".join(NUMBERS[name] for name, on in levels.items() if on)


def _streams(row: Row) -> bool:
    """Whether level 3 computes gradients before the batch is complete."""
    on = _accepted(row) and row["facts"]["levels"]["streamer"]
    return on and "waits for the whole batch" not in row["facts"]["exactness"]["streamer"]


def _notes(row: Row) -> str:
    """What is switched off and why, or why the config is refused."""
    if not _accepted(row):
        both = "refused, as RLinf itself does" if row["stock"] is not None else "**refused**"
        return _cell(f"{both}: {row['refusal']}")
    facts = row["facts"]
    # The remedy that follows is for those who have asked for the level by name.
    dropped = {name: why.partition(": async.")[0] for name, why in facts["dropped"].items()}
    notes = [f"level {NUMBERS[name]} off: {why}" for name, why in dropped.items()]
    offloaded = [change["key"] for change in facts["changes"] if change["key"].endswith(".enable_offload")]
    if offloaded:
        parts = ", ".join(key.removesuffix(".enable_offload") for key in offloaded)
        notes.append(f"offload off: {parts}")
    notes += [
        f"{change['key']}={change['value']}" for change in facts["changes"] if change["key"] not in offloaded
    ]
    notes += facts["translated"]
    if facts["levels"]["streamer"] and not _streams(row):
        notes.append("level 3 waits for the batch")
    return _cell("; ".join(notes))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def generate(page: str, rows: Mapping[str, Sequence[Row]]) -> str:
    """The page with its tables anew; of trees without rows it keeps what it says."""
    columns = dict(zip(TREES, list(zip(*_cells(page, "counts"), strict=True))[1:], strict=True))
    lines: dict[str, list[tuple[str, ...]]] = {tree: [] for tree in TREES}
    for name, trees, *cells in _cells(page, "configs"):
        for tree in trees.split(", "):
            lines[tree].append((name, *cells))
    columns |= {tree: tuple(_counted(tree, found)) for tree, found in rows.items()}
    lines |= {tree: [_line(row) for row in found] for tree, found in rows.items()}
    return fill(page, {"counts": counts(columns), "configs": configs(lines)})


def _cells(page: str, part: str) -> Iterator[list[str]]:
    """The cells of a table of the page, line by line."""
    text = page.partition(BEGIN.format(part))[2].partition(END.format(part))[0]
    _, _, *lines = text.strip().splitlines()
    for line in lines:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def known(checkouts: Sequence[Path]) -> str:
    """The digests of their example configs, by name: what `rlinf-async compat` compares others with."""
    digests: dict[str, set[str]] = {}
    for root in checkouts:
        for name, config in on_policy_examples(root).items():
            digests.setdefault(name, set()).add(digest(config))
    lines = (f"{json.dumps(name)}: {json.dumps(sorted(found))}" for name, found in sorted(digests.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    given = (argument.partition("=") for argument in sys.argv[1:])
    checkouts = {NAMES[tree]: Path(root) for tree, _, root in given}
    if checkouts.keys() == TREES.keys():
        KNOWN_EXAMPLES.write_text(known(list(checkouts.values())))
    PAGE.write_text(generate(PAGE.read_text(), collect(checkouts)))
