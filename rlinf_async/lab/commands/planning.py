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
    gpus: Annotated[
        str, typer.Option(help="Numbers of GPUs to place it on, separated by commas: 8,16,32.")
    ] = "",
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", help="Overrides to predict too, separated by commas; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write into this folder the plan as plain data, the service times for --times, the "
            "recommended run as a run directory, and a chart over --gpus.",
        ),
    ] = None,
) -> None:
    """Predict other settings of a run, or of a config with stated service times, without running them."""
    from rlinf_async.lab.plan import command

    numbers = or_exit(_numbers, gpus)
    if run is not None and config_name is None and times is None:
        proposal = or_exit(lambda: command.plan_run(run, tries=tried or [], gpus=numbers))
    elif run is None and config_name is not None and times is not None:
        config, explained = or_exit(_explained, config_name, config_dir)
        proposal = or_exit(
            lambda: command.plan_config(config, explained, times, tries=tried or [], gpus=numbers)
        )
    else:
        fail("give the directory of a run, or a config (-n) and its service times (--times)")
    command.show(proposal, console)
    if output is not None:
        or_exit(_write, proposal, output)
    if proposal.replayed is not None and not proposal.replayed.close:
        raise typer.Exit(1)


def _numbers(gpus: str) -> list[int]:
    numbers = [int(number) for number in gpus.split(",") if number.strip().isdecimal()]
    if len(numbers) != len([one for one in gpus.split(",") if one.strip()]) or 0 in numbers:
        raise ValueError(f"--gpus={gpus} must be numbers of at least 1, separated by commas")
    return numbers


def _write(proposal: Plan, folder: Path) -> None:
    """Everything that there is of a plan; without the chart it has still succeeded."""
    from rlinf_async.lab.plan import command
    from rlinf_async.lab.plan.chart import draw
    from rlinf_async.lab.plan.times_file import write_times
    from rlinf_async.observe.files import make_directory

    make_directory(folder)
    command.write(proposal, folder / "plan.json")
    write_times(folder / "times.yaml", proposal.times)
    command.write_run(proposal, folder / "run", say=partial(console.print, markup=False, soft_wrap=True))
    if proposal.placed:
        try:
            draw(proposal.placed, folder / "scaling.png")
        except ValueError as error:
            console.print(f"no chart: {error}", markup=False, soft_wrap=True)


def _explained(name: str, directory: Path | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A config with every `auto` resolved, and what its host says of it."""
    from rlinf_async.compose import locate
    from rlinf_async.hosts.host import host_of

    cfg = compose(*locate(name, directory), overrides=None)
    host = host_of(cfg)
    return host.resolved(cfg), host.explain(cfg)
