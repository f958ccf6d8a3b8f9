"""Commands that say what a config would do, and whether it could."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer

from rlinf_async.cli.arguments import AsJson, Chosen, ConfigDir, ConfigName, Overrides, console, or_exit
from rlinf_async.hosts.host import host_of


def explain(
    overrides: Overrides = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    diff: Annotated[
        str | None, typer.Option("--diff", help="Another config: say what differs. Overrides apply to both.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs per node of the cluster it is for; default: this machine's.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of that cluster; default: the config's.")] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(help="Gigabytes of one GPU of that cluster; default: this machine's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a config will do, without starting anything: `rlinf-async explain metaworld_ppo_mlp`."""
    from rlinf_async import config_diff

    chosen = [Chosen.of(config_name, config_dir, overrides)]
    if diff is not None:
        chosen.append(Chosen.of(diff, config_dir, chosen[0].overrides))
    configs = [one.compose() for one in chosen]
    host = or_exit(host_of, configs[0])
    say = host.explain if diff is None else partial(config_diff.differences, host)
    facts = or_exit(partial(say, gpus=gpus, nodes=nodes, gpu_memory=gpu_memory), *configs)
    if as_json:
        typer.echo(json.dumps(facts if diff is None else {"a": chosen[0].name, "b": diff, **facts}, indent=2))
    elif diff is None:
        host.show(facts, console)
    else:
        config_diff.show(facts, (chosen[0].name, chosen[1].name), console)


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

    from rich.markup import escape
    from rich.table import Table

    from rlinf_async.doctor import run_checks

    checks = run_checks()
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        table = Table("", "check", "found", "how to mend")
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for check in checks:
            mark = f"[{colours[check.status]}]{check.status}[/]"
            table.add_row(mark, *(escape(text) for text in (check.name, check.detail, check.mend)))
        console.print(table)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)
