"""Writes what docs/config.md generates: the `async` block and a table for each part of it.

    python docs/generate_config.py

It takes fields, defaults and docstrings from the dataclasses of `rlinf_async/config`, and what a field may be
from the words with which it refuses a wrong value. The prose of the page is left as it is.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from generated import fill

from rlinf_async.config import MODE_LEVELS, SKIPPING_MODES, AdvancedConfig, AsyncConfig, SkipConfig
from rlinf_async.config.checked import checked_config
from rlinf_async.config.removed import REMOVED_KEYS

PAGE = Path(__file__).with_name("config.md")
WRONG = "?"
"""A value that no field takes."""

OF_EVERY_LEVEL = {"enabled": "Whether this level is on; `async.mode` presets it."}
WITHOUT_DOCSTRING = {"mode": "Presets the three `enabled` flags and `skip`; a flag given explicitly wins."}


def docstrings(schema: type) -> dict[str, str]:
    """The string after each field of a class, on one line."""
    (body,) = [
        node.body for node in ast.walk(ast.parse(inspect.getsource(schema))) if isinstance(node, ast.ClassDef)
    ]
    found = {}
    for field, after in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value)
            found[ast.unparse(field.target)] = " ".join(text.split())
    return found


def blocks() -> dict[str, Any]:
    """The sub-blocks of `async`, with their defaults."""
    return {
        field.name: getattr(AsyncConfig(), field.name) for field in fields(AsyncConfig) if _is_block(field)
    }


def _is_block(field: Any) -> bool:
    return is_dataclass(field.default_factory)


def described(schema: type, level: str | None) -> Iterator[tuple[str, str, str, str]]:
    """Key, values, default and meaning of every field that is no block."""
    texts = {**OF_EVERY_LEVEL, **WITHOUT_DOCSTRING, **docstrings(schema)}
    for field in fields(schema):
        if _is_block(field):
            continue
        path = f"async.{level}.{field.name}" if level else f"async.{field.name}"
        preset = field.name == "enabled" or schema is SkipConfig
        default = "by `mode`" if preset else f"`{_yaml(field.default)}`"
        yield path, values(field, level), default, texts[field.name].replace("|", "\\|")


def values(field: Any, level: str | None) -> str:
    """What a field may be, in the words with which a wrong value is refused."""
    wrong: dict[str, Any] = {field.name: WRONG}
    try:
        checked_config({level: wrong} if level else wrong)
    except ValueError as error:
        refusal = str(error)
    else:
        raise AssertionError(f"{field.name} takes {WRONG!r}")
    may_be = re.search(r"must be (?:one of )?(.*?)(?:;|$)", refusal)
    if may_be is None:
        raise AssertionError(f"{refusal!r} does not say what {field.name} must be")
    words = may_be[1]
    if "one of" in refusal:
        return " ".join(f"`{choice}`" for choice in words.split(", "))
    auto = "auto or " if "auto" in str(field.type) and "auto" not in words else ""
    return re.sub(r"\b(auto|all|true|false)\b", r"`\1`", auto + words)


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def block() -> str:
    """The block with every default but those of `advanced`, as `mode: full` fills it."""
    full = checked_config({"mode": "full"})
    lines = ["async:"]
    for field in fields(AsyncConfig):
        value = getattr(full, field.name)
        if isinstance(value, AdvancedConfig):
            continue  # few runs need it
        if not _is_block(field):
            lines.append(f"  {field.name}: {_yaml(value)}")
            continue
        lines.append(f"  {field.name}:")
        lines += [f"    {item.name}: {_yaml(getattr(value, item.name))}" for item in fields(value)]
    return "\n".join(["```yaml", *lines, "```"])


def table(schema: type, level: str | None) -> str:
    rows = [
        f"| `{path}` | {may_be} | {default} | {text} |"
        for path, may_be, default, text in described(schema, level)
    ]
    return "\n".join(["| key | values | default | what |", "|---|---|---|---|", *rows])


def modes() -> str:
    """The levels that each preset switches on, and whether it leaves dead work out."""
    rows = [
        f"| `{mode}` | {' | '.join('on' if on else '' for on in (*levels, mode in SKIPPING_MODES))} |"
        for mode, levels in MODE_LEVELS.items()
    ]
    head = [
        "| mode | level 1 `train` | level 2 `rollout` | level 3 `streamer` | `skip` |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def removed() -> str:
    """Keys and values that are gone."""
    rows = [f"| `{name}` | {instead} |" for name, instead in REMOVED_KEYS.items()]
    return "\n".join(["| key | instead |", "|---|---|", *rows])


def parts() -> dict[str, str]:
    """Everything that is generated, by its name on the page."""
    tables = {name: table(type(value), name) for name, value in blocks().items()}
    return {
        "block": block(),
        **tables,
        "async": table(AsyncConfig, None),
        "modes": modes(),
        "removed": removed(),
    }


def generate(page: str) -> str:
    """The page with all its generated parts anew."""
    return fill(page, parts())


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
