"""Commands that only read: `explain`, `configs`, `doctor` and `status`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlinf_async.cli.arguments import (
    AsJson,
    Chosen,
    ConfigDir,
    ConfigName,
    Multirun,
    Overrides,
    RunDir,
    console,
    errors,
    or_exit,
)
from rlinf_async.core.config_keys import dotted
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, Host, check_preparations, host_of
from rlinf_async.observe.check import Check

if TYPE_CHECKING:
    from omegaconf import DictConfig


def explain(
    overrides: Overrides = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    diff: Annotated[
        str | None, typer.Option("--diff", help="Another config: say what differs. Overrides apply to both.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, help="GPUs per node of the cluster it is for; default: this machine's."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes of that cluster; default: the config's.")
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(min=1, help="Gigabytes of one GPU of that cluster; default: this machine's."),
    ] = None,
    multirun: Multirun = False,
    as_json: AsJson = False,
) -> None:
    """Explain a run without starting it: `rlinf-async explain metaworld_ppo_mlp`."""
    selections = [Chosen.of(config_name, config_dir, overrides)]
    if diff is not None:
        selections.append(Chosen.of(diff, config_dir, selections[0].overrides))
    configs = [one.compose() for one in selections]
    host = or_exit(host_of, configs[0])
    say = partial(_explanation, host) if diff is None else partial(differences, host)
    facts = or_exit(say, *configs, AssumedCluster(gpus=gpus, nodes=nodes, gpu_memory=gpu_memory))
    # Last, as `train` does: a block may take a value of another key, which is judged by its own name.
    for cfg in configs:
        or_exit(check_preparations, cfg)
    if as_json:
        typer.echo(
            json.dumps(facts if diff is None else {"a": selections[0].name, "b": diff, **facts}, indent=2)
        )
    elif diff is None:
        _show(host, facts)
    else:
        show_differences(facts, (selections[0].name, selections[1].name), console)


NO_BLOCK = (
    "This config has no async block, or an empty one: the framework's own, synchronous loop runs it. With "
    "the block async: {mode: full}, or +async.mode=full here,"
)
PRESET_KEY = "with_mode_full"
"""The key, in plain data, of the explanation with `mode: full` for a config without a block."""


def _explanation(host: Host, cfg: DictConfig, cluster: AssumedCluster) -> dict[str, Any]:
    """Explain a config; if it has no block, explain it with `mode: full`, too."""
    from rlinf_async.hosts.async_block import read_block, with_preset

    facts = host.explain(cfg, cluster)
    if not read_block(cfg):
        try:
            facts[PRESET_KEY] = host.explain(with_preset(cfg, "full"), cluster)
        except ValueError as error:
            facts[PRESET_KEY] = {"refused": str(error)}
    return facts


def _show(host: Host, facts: dict[str, Any]) -> None:
    would = facts.get(PRESET_KEY)
    if would is None:
        host.show(facts, console)
    elif "refused" in would:
        host.show(facts, console)
        console.print(f"{NO_BLOCK} it would be refused: {would['refused']}", markup=False, soft_wrap=True)
    else:
        console.print(f"{NO_BLOCK} it would do this:", markup=False, soft_wrap=True)
        host.show(would, console)


def configs(as_json: AsJson = False) -> None:
    """List the configs of this package that can be run here."""
    from rlinf_async.compose import described, packaged_names

    descriptions = {name: described(name) for name in packaged_names()}
    if as_json:
        typer.echo(json.dumps(descriptions, indent=2))
        return
    table = Table(box=None)
    table.add_column("config", no_wrap=True)
    table.add_column("what it is")
    for name, text in descriptions.items():
        table.add_row(name, text)
    console.print(table)


def doctor(as_json: AsJson = False) -> None:
    """Check that this machine has everything a run needs, and say how to mend each fault."""
    from dataclasses import asdict

    from rlinf_async.doctor import run_checks

    with errors.status("looking at the installation and the machine, some seconds ..."):
        checks = run_checks()
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            _show_check(check)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _show_check(check: Check) -> None:
    """Print a check in lines as wide as the terminal; a remedy stays one line, so that it can be copied."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
    indent = 22
    width = max(console.width - indent, 30) if console.is_terminal else None
    lines = [check.detail]
    if width:
        lines = textwrap.wrap(check.detail, width, break_long_words=False, break_on_hyphens=False)
    console.print(f"[{colours[check.status]}]{check.status:5}[/] {check.name:15} ", end="")
    console.print(f"\n{'':{indent}}".join(lines), markup=False, soft_wrap=True)
    if check.mend:
        console.print(f"{'':{indent}}[bold]->[/] ", end="")
        console.print(check.mend, markup=False, soft_wrap=True)


def status(
    run: RunDir,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also the stacks of all its processes on this machine.")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Again every two seconds, until the run has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the present state of a run, and the waits between its parts."""
    from rlinf_async.observe.reading.stacks import stacks_of
    from rlinf_async.observe.reading.status import show_watched, status_facts, status_of, watch

    if as_json:
        looks = watch(run) if watching else iter([or_exit(status_facts, run)])
        or_exit(_echo_each, looks)
        return
    if watching:
        or_exit(show_watched, watch(run), console)
        return

    for line in or_exit(status_of, run):
        console.print(line, markup=False, soft_wrap=True)
    for name, stack in stacks_of(run) if stacks else ():
        console.print(f"\n[bold]{name}[/]")
        console.print(stack, markup=False, soft_wrap=True)


def _echo_each(looks: Iterable[Mapping[str, Any]]) -> None:
    for facts in looks:
        typer.echo(json.dumps(facts))


def differences(
    host: Host, a: DictConfig, b: DictConfig, cluster: AssumedCluster = THIS_MACHINE
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the dotted keys with different values: of `facts` (as `explain` shows them) and of `config`.

    A key has `{"a": ..., "b": ...}`; a side that lacks the key is left out. Both configs are explained for
    `cluster`.

    Raises:
        ValueError: one of the configs cannot run, with the remedy.
    """
    facts = [dotted(_comparable_facts(host.explain(cfg, cluster))) for cfg in (a, b)]
    configs = [dotted(host.resolved(cfg, cluster)) for cfg in (a, b)]
    return {"facts": _differing(*facts), "config": _differing(*configs)}


def _comparable_facts(explained: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in explained.items() if value not in (None, [])}
    # The config in a run directory has a number for `auto`: the same shards for another reason do not differ.
    facts.get("shards", {}).pop("why", None)
    # It also has dropped levels and changed keys applied already, so that these lists are then empty.
    facts = {name: value for name, value in facts.items() if name not in ("dropped", "changes")}
    # As a list, as the dots in names of classes would look like nested keys.
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


def show_differences(
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
