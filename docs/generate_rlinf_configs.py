"""Writes what docs/rlinf-configs.md generates: what `full` does with RLinf's on-policy example configs.

    python docs/generate_rlinf_configs.py RLINF_V0_3 RLINF_MAIN RLINF_WITH_1365

It takes the roots of three checkouts of RLinf, and asks `docs/rlinf_examples.py` about each in a process of
its own, where `import rlinf` gives that checkout. The prose of the page is left as it is. The digests of the
configs are written where `rlinf-async compat` looks for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import fill

from rlinf_async.hosts.rlinf.checkout import KNOWN_EXAMPLES, digest, on_policy_examples

PAGE = Path(__file__).with_name("rlinf-configs.md")
SOURCES = Path(__file__).parents[1]
TREES = ("0.3", "main", "1365")
BEFORE = {"0.3": ("43", "34"), "main": ("45", "none"), "1365": ("none", "none")}
"""Per tree, how many `explain` accepted and how many really ran through RLinf's script for them, before
levels gave way to what they cannot serve and RLinf's asynchronous script and its main branch were served.
With pull request 1365 there were none until this package assembled trajectories by itself."""
NUMBERS = {"train": "1", "rollout": "2", "streamer": "3"}

Row = Mapping[str, Any]


def collect(checkouts: Sequence[Path]) -> dict[str, list[Row]]:
    """The rows of each tree; all are worked out at the same time.

    Raises:
        RuntimeError: one of the processes fails; with what it has said.
    """
    asked = [(tree, _ask(root)) for tree, root in zip(TREES, checkouts, strict=True)]
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


def counts(rows: Mapping[str, Sequence[Row]]) -> str:
    """How many configs there are, and what becomes of them."""

    def count(what: Any) -> list[str]:
        return [str(sum(map(what, found))) for found in rows.values()]

    lines = [
        ["on-policy example configs", *count(lambda row: True)],
        ["accepted by RLinf itself on eight GPUs", *count(lambda row: row["stock"] is None)],
        ["`full` was accepted before", *(BEFORE[tree][0] for tree in rows)],
        ["and really ran through the script that is documented", *(BEFORE[tree][1] for tree in rows)],
        ["**`full` is accepted now**", *(f"**{number}**" for number in count(_accepted))],
        ["with all three levels", *count(lambda row: _levels_of(row) == "1 2 3")],
        ["where level 3 streams", *count(_streams)],
        ["with fewer levels", *count(lambda row: _accepted(row) and _levels_of(row) != "1 2 3")],
        ["refused, though RLinf accepts", *count(lambda row: not _accepted(row) and row["stock"] is None)],
        ["refused, as RLinf refuses", *count(lambda row: not _accepted(row) and row["stock"] is not None)],
    ]
    return table(["", *(f"RLinf {tree}" for tree in rows)], lines)


def configs(rows: Mapping[str, Sequence[Row]]) -> str:
    """A line per config, one for all trees where nothing differs."""
    found: dict[tuple[str, ...], list[str]] = {}
    for tree, of_tree in rows.items():
        for row in of_tree:
            found.setdefault(_line(row), []).append(tree)
    columns = ["config", "RLinf", "algorithm", "model", "simulator", "placement", "levels", "shards", "notes"]
    lines = [[line[0], ", ".join(trees), *line[1:]] for line, trees in sorted(found.items())]
    return table(columns, lines)


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
    return on and "normalization is deferred" not in row["facts"]["exactness"]["streamer"]


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
    """The page with its tables anew."""
    return fill(page, {"counts": counts(rows), "configs": configs(rows)})


def known(checkouts: Sequence[Path]) -> str:
    """The digests of their example configs, by name: what `rlinf-async compat` compares others with."""
    digests: dict[str, set[str]] = {}
    for root in checkouts:
        for name, config in on_policy_examples(root).items():
            digests.setdefault(name, set()).add(digest(config))
    lines = (f"{json.dumps(name)}: {json.dumps(sorted(found))}" for name, found in sorted(digests.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    checkouts = [Path(root) for root in sys.argv[1:]]
    KNOWN_EXAMPLES.write_text(known(checkouts))
    PAGE.write_text(generate(PAGE.read_text(), collect(checkouts)))
