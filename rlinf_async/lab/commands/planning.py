"""The command that predicts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_async.cli.arguments import ConfigDir, compose, console, fail, or_exit

if TYPE_CHECKING:
    from rlinf_async.lab.plan.command import Plan


def plan(
    run: Annotated[
        Path | None, typer.Argument(help="The directory of a run to calibrate from, with a trace.")
    ] = None,
    config_name: Annotated[
        str | None, typer.Option("--config-name", "-n", help="Instead of a run: a config by name, or a file.")
    ] = None,
    config_dir: ConfigDir = None,
    times: Annotated[
        Path | None, typer.Option(help="Service times in YAML, for a config; see docs/plan.md.")
    ] = None,
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", help="Overrides to predict too, separated by commas; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write into this folder the plan as plain data, the service times for --times, and the "
            "fastest run as a run directory.",
        ),
    ] = None,
) -> None:
    """Predict other settings of a run, or of a config with stated service times, without running them."""
    from rlinf_async.lab.plan import command

    if run is not None and config_name is None and times is None:
        proposal = or_exit(lambda: command.plan_run(run, tries=tried or []))
    elif run is None and config_name is not None and times is not None:
        config, explained = or_exit(_explained, config_name, config_dir)
        proposal = or_exit(lambda: command.plan_config(config, explained, times, tries=tried or []))
    else:
        fail("give the directory of a run, or a config (-n) and its service times (--times)")
    command.show(proposal, console)
    if output is not None:
        or_exit(_write, proposal, output)
    if proposal.replayed is not None and not proposal.replayed.close:
        raise typer.Exit(1)


def _write(proposal: Plan, folder: Path) -> None:
    """Everything that there is of a plan."""
    from rlinf_async.lab.plan import command
    from rlinf_async.lab.plan.times_file import write_times
    from rlinf_async.observe.files import make_directory

    make_directory(folder)
    command.write(proposal, folder / "plan.json")
    write_times(folder / "times.yaml", proposal.times)
    command.write_run(proposal, folder / "run", say=partial(console.print, markup=False, soft_wrap=True))


def _explained(name: str, directory: Path | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A config with every `auto` resolved, and what its host says of it."""
    from rlinf_async.compose import locate
    from rlinf_async.hosts.host import host_of

    cfg = compose(*locate(name, directory), overrides=None)
    host = host_of(cfg)
    return host.resolved(cfg), host.explain(cfg)
