"""Commands that say what a config would do, and whether it could."""

from __future__ import annotations

import json
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_async.cli.arguments import (
    AsJson,
    Chosen,
    ConfigDir,
    ConfigName,
    Multirun,
    Overrides,
    console,
    errors,
    or_exit,
)
from rlinf_async.hosts.host import AssumedCluster, Host, host_of
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
    """Say what a config will do, without starting anything: `rlinf-async explain metaworld_ppo_mlp`."""
    from rlinf_async import config_diff

    selections = [Chosen.of(config_name, config_dir, overrides)]
    if diff is not None:
        selections.append(Chosen.of(diff, config_dir, selections[0].overrides))
    configs = [one.compose() for one in selections]
    host = or_exit(host_of, configs[0])
    say = partial(_explained, host) if diff is None else partial(config_diff.differences, host)
    facts = or_exit(say, *configs, AssumedCluster(gpus=gpus, nodes=nodes, gpu_memory=gpu_memory))
    if as_json:
        typer.echo(
            json.dumps(facts if diff is None else {"a": selections[0].name, "b": diff, **facts}, indent=2)
        )
    elif diff is None:
        _show(host, facts)
    else:
        config_diff.show(facts, (selections[0].name, selections[1].name), console)


NO_BLOCK = (
    "This config has no async block, or an empty one: the framework's own, synchronous loop runs it. With "
    "the block async: {mode: full}, or +async.mode=full here,"
)
PRESET_KEY = "with_mode_full"
"""The key under which plain data have the explanation of a config without a block, as it would run with
`mode: full`."""


def _explained(host: Host, cfg: DictConfig, cluster: AssumedCluster) -> dict[str, Any]:
    """Explain a config; of one without a block, explain it also with `mode: full`, if that can run."""
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
    from rich.table import Table

    from rlinf_async.compose import described, packaged_names

    descriptions = {name: described(name) for name in packaged_names()}
    if as_json:
        typer.echo(json.dumps(descriptions, indent=2))
        return
    table = Table("config", "what it is", box=None)
    for name, text in descriptions.items():
        table.add_row(name, text)
    console.print(table)


def doctor(as_json: AsJson = False) -> None:
    """Check that everything a run needs is here, and say how to mend what is not."""
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
    """In lines as wide as the terminal; a remedy is one line, so that it can be copied."""
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
