"""The command line; every command is a function."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlinf_async import __version__
from rlinf_async.cli import breaking, comparing, looking, planning, running, training
from rlinf_async.cli.arguments import fail
from rlinf_async.extras import remedy
from rlinf_async.observe.ending import INTERRUPTED


class Commands(TyperGroup):
    """Ends a command that needs an extra with a sentence that says which, and an interrupted one with 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except ModuleNotFoundError as error:
            what_to_do = remedy(error)
            if what_to_do is None:
                raise
            fail(what_to_do)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlinf-async {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version it is."),
    ] = False,
) -> None:
    """Asynchronous RL post-training of vision-language-action models, as a plugin for RLinf and veRL."""


for command in (
    training.train,
    running.explain,
    running.configs,
    running.doctor,
    comparing.bench,
    comparing.sweep,
    breaking.chaos,
    planning.plan,
    looking.trace,
    looking.status,
    looking.report,
):
    app.command()(command)
