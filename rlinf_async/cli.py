"""The command line: train, explain, doctor, bench."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from omegaconf import DictConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Asynchronous RL post-training of vision-language-action models, as a plugin for RLinf.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ConfigName = Annotated[str, typer.Option("--config-name", "-n", help="A config by name, without .yaml.")]
ConfigDir = Annotated[Path | None, typer.Option("--config-dir", help="Where it is; default: this package.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides, such as async.mode=full.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain data.")]


@app.command()
def train(
    config_name: ConfigName,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    worker_logs: Annotated[bool, typer.Option(help="Show what the worker processes print.")] = False,
    dashboard: Annotated[bool, typer.Option(help="Serve Ray's dashboard, if the run starts Ray.")] = False,
) -> None:
    """Run a config."""
    # Ray and RLinf read these when they are imported.
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "1" if worker_logs else "0")
    if not worker_logs:
        os.environ.setdefault("RLINF_LOG_LEVEL", "WARNING")
        logging.disable(logging.INFO)
    import torch.multiprocessing as multiprocessing

    multiprocessing.set_start_method("spawn", force=True)
    cfg = _compose(config_name, overrides, config_dir)
    from rlinf_async.hosts.rlinf.host import prepare
    from rlinf_async.hosts.rlinf.warm_start import fill_in

    _or_exit(prepare, cfg)
    _or_exit(fill_in, cfg)
    from rlinf_async.hosts.rlinf.train import train as run

    console.print("starting Ray and the worker processes, about half a minute ...", style="dim")
    try:
        run(cfg, dashboard=dashboard)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command()
def explain(
    config_name: ConfigName,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: AsJson = False,
) -> None:
    """Say what a config will do, without starting anything."""
    from rlinf_async.hosts.rlinf.explain import explain as facts_of
    from rlinf_async.hosts.rlinf.explain import show

    cfg = _compose(config_name, overrides, config_dir)
    facts = _or_exit(facts_of, cfg)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts, console)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check that everything a run needs is here, and say how to mend what is not."""
    from dataclasses import asdict

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
            table.add_row(mark, check.name, check.detail, check.mend)
        console.print(table)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


@app.command()
def bench(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Which to run; repeatable. All by default.")
    ] = None,
    modes: Annotated[str | None, typer.Option(help="Which to compare, separated by commas.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two scenarios, three modes, once.")] = False,
    repetitions: Annotated[int | None, typer.Option(help="Of every mode, interleaved; default 3.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write rows and a chart; an interrupted bench goes on there."),
    ] = None,
) -> None:
    """Measure how fast each mode is here, and how far from the best possible."""
    from rlinf_async.bench import command

    cells = _or_exit(
        lambda: command.plan(
            scenarios=scenario,
            modes=modes.split(",") if modes else None,
            quick=quick,
            repetitions=repetitions,
        )
    )
    board = command.run(cells, json_path=json_file, console=console)
    command.show(board, console)
    if json_file is not None:
        from rlinf_async.bench.chart import draw

        console.print(f"rows in {json_file}, chart in {draw(board.rows(), json_file.with_suffix('.png'))}")
    if any("error" in row for row in board.rows()):
        raise typer.Exit(1)


def _compose(name: str, overrides: list[str] | None, directory: Path | None) -> DictConfig:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from rlinf_async.hosts.rlinf.compose import compose_config, packaged_names
    from rlinf_async.plugin import register

    register()
    try:
        return compose_config(name, overrides or [], directory)
    except (HydraException, OmegaConfBaseException) as error:
        known = f"\nconfigs of this package: {', '.join(packaged_names())}" if directory is None else ""
        _fail(f"{error}{known}")


def _or_exit(function, *arguments):
    """Call `function`; a ValueError, which names the remedy, ends the command without a traceback."""
    try:
        return function(*arguments)
    except ValueError as error:
        _fail(str(error))


def _fail(message: str):
    errors.print(f"[bold red]error:[/] {message}", soft_wrap=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
