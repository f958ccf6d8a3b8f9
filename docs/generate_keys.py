"""Writes what docs/keys.md generates: the tables of keys, one for each host.

    python docs/generate_keys.py

It takes the rows of every host. The prose of the page is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from generated import fill

from rlinf_async.hosts.judge.table import UNSTATED_KIND, Key, Table
from rlinf_async.hosts.local import config as local
from rlinf_async.hosts.rlinf import keys as rlinf
from rlinf_async.hosts.verl import reasons as verl

PAGE = Path(__file__).with_name("keys.md")
TABLES = {"rlinf": rlinf.TABLE, "verl": verl.TABLE, "local": local.TABLE}


def lines(table: Table) -> Iterator[str]:
    """A table in Markdown, a line for every row."""
    yield "| key | may be | here |"
    yield "|---|---|---|"
    for row in sorted(table.rows, key=lambda row: (row.name, row.fate)):
        may_be = "" if row.kind is UNSTATED_KIND else row.kind.words + _null(row)
        yield f"| `{row.name}` | {may_be} | {_here(row)} |".replace("|  |", "| |")


def _null(row: Key) -> str:
    if row.required:
        return " (needed)"
    if row.null is not None:
        return f"; null is {row.null}"
    return "; or null" if row.fate == "served" and row.nullable else ""


def _here(row: Key) -> str:
    why = row.remedy if row.fate == "refused" else row.why
    if row.fate == "translated":
        return f"translated to `{why}`"
    return f"{row.fate}: {why}" if why else str(row.fate)


def conflicts(table: Table) -> Iterator[str]:
    """A table in Markdown of the settings that do not go together, a line for each conflict."""
    yield "| settings | instead | because |"
    yield "|---|---|---|"
    for row in table.conflicts:
        parts = (
            ("~" if sign == "~" else "", key, sign.strip("~"), "|".join(words))
            for key, sign, words in row.settings
        )
        settings = " ".join(f"`{''.join(part)}`" for part in parts).replace("|", "\\|")
        yield f"| {settings} | `{row.override}` | {row.why} |"


def generate(page: str) -> str:
    """The page with its tables anew."""
    keys = {name: "\n".join(lines(table)) for name, table in TABLES.items()}
    together = {f"{name}-conflicts": "\n".join(conflicts(TABLES[name])) for name in ("rlinf", "verl")}
    return fill(page, {**keys, **together})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
