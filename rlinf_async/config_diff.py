"""The differences between two configs, once both are resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlinf_async.core.nested import dotted
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, Host

if TYPE_CHECKING:
    from omegaconf import DictConfig


def differences(
    host: Host, a: DictConfig, b: DictConfig, cluster: AssumedCluster = THIS_MACHINE
) -> dict[str, dict[str, dict[str, Any]]]:
    """Plain data: of `facts` (what `explain` says) and of `config`, the dotted keys whose values differ.

    `cluster` is the one that both configs are explained for.

    A key has `{"a": ..., "b": ...}`; a side that lacks the key is left out.

    Raises:
        ValueError: one of the configs cannot run, with the remedy.
    """
    facts = [dotted(_facts(host.explain(cfg, cluster))) for cfg in (a, b)]
    configs = [dotted(host.resolved(cfg, cluster)) for cfg in (a, b)]
    return {"facts": _differing(*facts), "config": _differing(*configs)}


def _facts(explained: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in explained.items() if value not in (None, [])}
    # A run writes `auto` down as a number: the same shards for another reason are no difference.
    facts.get("shards", {}).pop("why", None)
    # It also writes down what gives way, and then nothing does.
    facts = {name: value for name, value in facts.items() if name not in ("dropped", "changes")}
    # As a list: names of classes have dots, which would look like keys of keys.
    return {
        **facts,
        "classes": [f"{stock} -> {replacement}" for stock, replacement in facts.get("classes", {}).items()],
    }


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    differing = {}
    for key in dict.fromkeys((*a, *b)):
        sides = {side: values[key] for side, values in (("a", a), ("b", b)) if key in values}
        if len(sides) < 2 or sides["a"] != sides["b"]:
            differing[key] = sides
    return differing


def show(
    differing: Mapping[str, Mapping[str, Mapping[str, Any]]], names: tuple[str, str], console: Console
) -> None:
    """Print `differences` for a reader."""
    console.print(f"A is {names[0]}, B is {names[1]}", markup=False)
    if not any(differing.values()):
        console.print("they do the same: resolved, no key differs")
        return
    titles = {"facts": "What they do differently", "config": "Keys of the resolved configs that differ"}
    for part, title in titles.items():
        if not differing[part]:
            console.print(f"{title}: none")
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("", no_wrap=True)
        table.add_column("A", overflow="fold")
        table.add_column("B", overflow="fold")
        for key, sides in differing[part].items():
            table.add_row(escape(key), _cell(sides, "a"), _cell(sides, "b"))
        console.print(table)


def _cell(sides: Mapping[str, Any], side: str) -> str:
    if side not in sides:
        return "[dim](absent)[/]"
    value = sides[side]
    if isinstance(value, list):
        return escape("\n".join(str(item) for item in value)) or "[dim](none)[/]"
    return "[dim]null[/]" if value is None else escape(str(value))
