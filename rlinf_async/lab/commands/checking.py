"""The command that looks at a checkout of RLinf."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rlinf_async.cli.arguments import or_exit


def compat(
    tree: Annotated[Path, typer.Argument(metavar="TREE", help="The root of a checkout of RLinf.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print plain data.")] = False,
) -> None:
    """Say which names a checkout of RLinf lacks, which types are not known, and which configs are new."""
    from rlinf_async.hosts.rlinf.checkout import lines_of, look_at

    checkout = or_exit(look_at, tree.absolute())
    if as_json:
        typer.echo(json.dumps(asdict(checkout), indent=2, default=str))
    else:
        typer.echo("\n".join(lines_of(checkout)))
    if checkout.tree.missing:
        raise typer.Exit(1)
