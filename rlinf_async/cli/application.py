"""All commands of the command line; each is a function."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rlinf_async import __version__
from rlinf_async.cli.arguments import LEAST_WIDTH, errors, fail, or_exit, say_error
from rlinf_async.cli.last_moments import ending_in_time
from rlinf_async.core.config_keys import clipped
from rlinf_async.entry_points import load_class, names_of
from rlinf_async.observe.ending import INTERRUPTED_STATUS
from rlinf_async.observe.files import discard
from rlinf_async.termination import answering_signals

COMMANDS_GROUP = "rlinf_async.commands"
"""Entry points of further commands, by name; those of this package are in `rlinf_async.lab`."""

OWN_COMMANDS = {
    "explain": "looking",
    "train": "training",
    "status": "looking",
    "doctor": "looking",
    "configs": "looking",
}
"""Commands of this package, with their modules in `rlinf_async.cli`."""

EVERYDAY_COMMANDS = ("explain", "train", "report", "status", "doctor", "configs")
"""The commands that every user needs, as the help lists them; all others follow under `FURTHER_PANEL`."""

READING_COMMANDS = ("explain", "configs", "compat")
"""Commands that write no file, start no process and do not wait."""

FURTHER_PANEL = "To measure, predict and test"
"""The heading of the other commands in the list of commands."""

OPTION_SPELLINGS = {"config-path": "config-dir"}
"""Options of Hydra's scripts under another name here."""

CONTEXT_SETTINGS = {"token_normalize_func": lambda word: OPTION_SPELLINGS.get(word, word)}


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, which an output may be on."""


class PlainFlags:
    """Shows switches in the help without a value; Typer shows them like options that take one."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            if getattr(one, "is_flag", False) and one.metavar is None:
                one.metavar = ""
        return params


class PlainCommand(PlainFlags, TyperCommand):
    """A command with plain switches. One that writes nothing is ended by a signal at once: libraries that it
    imports turn an interrupt into other errors, or go on.
    """

    def invoke(self, ctx: Any) -> Any:
        if ctx.info_name not in READING_COMMANDS:
            return super().invoke(ctx)
        with answering_signals("before it had ended"):
            return super().invoke(ctx)


class Commands(PlainFlags, TyperGroup):
    """The commands of this package and those of entry points, which are imported on first use.

    A command that needs a missing extra ends with a message that names it, and so does one that meets a file
    or folder that it may not touch; an interrupted command ends with status 130.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        self._bring([*OWN_COMMANDS, *names_of(COMMANDS_GROUP)])
        return [name for name in EVERYDAY_COMMANDS if name in self.commands] + [
            name for name in super().list_commands(ctx) if name not in EVERYDAY_COMMANDS
        ]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            known = [*OWN_COMMANDS, *names_of(COMMANDS_GROUP)]
            # All of them if the name is unknown, so that Typer can suggest the nearest.
            self._bring([cmd_name] if cmd_name in known else known)
        return super().get_command(ctx, cmd_name)

    def _bring(self, names: Iterable[str]) -> None:
        """Import commands; one of this package wins over one of an entry point with the same name."""
        for name in names:
            if name not in self.commands:
                further = typer.Typer(add_completion=False)
                panel = None if name in EVERYDAY_COMMANDS else FURTHER_PANEL
                further.command(
                    name, cls=PlainCommand, rich_help_panel=panel, context_settings=CONTEXT_SETTINGS
                )(_command(name))
                self.commands[name] = typer.main.get_command(further)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:  # a test, or another program, has given the arguments
            return self._main(*args, **kwargs)
        with ending_in_time(_say_at_last):
            return self._main()

    def _main(self, *args: Any, **kwargs: Any) -> Any:
        _widen_help()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # a closed pipe is Typer's
            if error.filename is not None or error.errno not in NO_ROOM:
                raise
            say_error(f"what this command prints or writes has no room: {error.strerror}")
            if sys.stdout is not None:
                # Python would fail on the same output when it exits.
                discard(sys.stdout.fileno())
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        _check_directory()
        try:
            result = super().invoke(ctx)
            # None: the process was started without one. Environments or a policy may have closed it.
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED_STATUS) from None
        except ModuleNotFoundError as error:
            from rlinf_async.extras import remedy  # for a failed command alone

            what_to_do = remedy(error)
            if what_to_do is None:
                raise
            fail(what_to_do)
        except OSError as error:
            if error.filename is None:  # no file, as with a closed pipe
                raise
            fail(f"{clipped(str(error.filename))} cannot be used: {error.strerror or error}")


def _command(name: str) -> Callable[..., Any]:
    if name in OWN_COMMANDS:
        return getattr(import_module(f"rlinf_async.cli.{OWN_COMMANDS[name]}"), name)
    return or_exit(load_class, COMMANDS_GROUP, name)


def _say_at_last(text: str) -> None:
    # Packages may have closed the stream.
    with suppress(OSError, ValueError):
        errors.print(text, style="bold", markup=False, soft_wrap=True)


def _widen_help() -> None:
    """Give Typer's help, which has a console of its own, at least `LEAST_WIDTH` columns."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) < LEAST_WIDTH:
        os.environ["COLUMNS"] = str(LEAST_WIDTH)


def _check_directory() -> None:
    """End the command if its working directory was deleted: libraries would fail one after the other."""
    try:
        os.getcwd()
    except FileNotFoundError:
        fail("the working directory does not exist any more; cd to one that does")


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"rlinf-async {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Asynchronous RL post-training of vision-language-action models, as a plugin for RLinf and veRL."""
