"""The command line; every command is a function."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from rlinf_async import __version__
from rlinf_async.extras import remedy

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Commands(TyperGroup):
    """Ends a command that needs an extra with a sentence that says which."""

    def invoke(self, ctx: typer.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            what_to_do = remedy(error)
            if what_to_do is None:
                raise
            _fail(what_to_do)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ConfigName = Annotated[str, typer.Option("--config-name", "-n", help="A config by name, without .yaml.")]
ConfigDir = Annotated[Path | None, typer.Option("--config-dir", help="Where it is; default: this package.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides, such as async.mode=full.")]
RunDir = Annotated[Path, typer.Argument(help="The directory of a run: its runner.logger.log_path.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain data.")]


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
    """Asynchronous RL post-training of vision-language-action models, as a plugin for RLinf."""


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
    from rlinf_async.hosts.rlinf.host import make_ready, prepare

    _or_exit(prepare, cfg)
    _or_exit(make_ready, cfg)
    from rlinf_async.hosts.rlinf.train import train as run

    console.print("starting Ray and the worker processes, about half a minute ...", style="dim")
    try:
        run(cfg, dashboard=dashboard)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command()
def explain(
    config_name: Annotated[
        str, typer.Option("--config-name", "-n", help="A config by name, or the config.yaml of a run.")
    ],
    overrides: Overrides = None,
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
    """Say what a config will do, without starting anything."""
    from rlinf_async.hosts.rlinf import differences
    from rlinf_async.hosts.rlinf.explain import explain as facts_of
    from rlinf_async.hosts.rlinf.explain import show

    names = [name for name in (config_name, diff) if name is not None]
    configs = []
    for name in names:
        stem, directory = _or_exit(differences.place, name, config_dir)
        configs.append(_compose(stem, overrides, directory))
    say = differences.differences if diff is not None else facts_of
    found = _or_exit(partial(say, gpus=gpus, nodes=nodes, gpu_memory=gpu_memory), *configs)
    if as_json:
        typer.echo(json.dumps(found if diff is None else {"a": names[0], "b": names[1], **found}, indent=2))
    elif diff is None:
        show(found, console)
    else:
        differences.show(found, (names[0], names[1]), console)


@app.command()
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


@app.command()
def bench(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Which to run, separated by commas. All by default.")
    ] = None,
    modes: Annotated[list[str] | None, typer.Option(help="Which to compare, separated by commas.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two scenarios, three modes, once.")] = False,
    repetitions: Annotated[int | None, typer.Option(help="Of every mode, interleaved; default 3.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write rows and a chart; an interrupted bench goes on there."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Stop after this many runs; the others are for the next start.")
    ] = None,
) -> None:
    """Measure how fast each mode is here, and how far from the best possible."""
    from rlinf_async.bench import command
    from rlinf_async.bench.table import show

    cells = _or_exit(
        lambda: command.plan(
            scenarios=_listed(scenario),
            modes=_listed(modes),
            quick=quick,
            repetitions=repetitions,
        )
    )
    board, todo = _or_exit(lambda: command.open_board(cells, json_path=json_file))
    command.run(board, todo[:limit], json_path=json_file, console=console)
    show(board, console)
    if json_file is not None and any(row.get("ratio_stock_sync") for row in board.rows()):
        from rlinf_async.bench.chart import draw

        chart = draw(board.rows(), json_file.with_suffix(".png"))
        console.print(f"rows in {json_file}, chart in {chart}", markup=False, soft_wrap=True)
    if any("error" in row for row in board.rows()):
        raise typer.Exit(1)


def _listed(values: list[str] | None) -> list[str] | None:
    """What was given with commas, or with the option repeated."""
    return [name.strip() for value in values for name in value.split(",")] if values else None


@app.command()
def sweep(
    config_name: ConfigName,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    modes: Annotated[
        str, typer.Option(help="ladder, all, or settings such as off,train+rollout,full.")
    ] = "ladder",
    seeds: Annotated[int, typer.Option(help="Runs of every setting, interleaved.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(help="Where to; an interrupted sweep goes on there. Default: sweeps/CONFIG."),
    ] = None,
) -> None:
    """Run a config with more and more of the levels on, and compare."""
    from rlinf_async.sweep import command

    cfg = _compose(config_name, overrides, config_dir)
    planned = _or_exit(
        lambda: command.plan(
            cfg,
            config_name=config_name,
            config_dir=config_dir,
            overrides=overrides or [],
            modes=modes,
            seeds=seeds,
            output=output,
        )
    )
    try:
        succeeded = _or_exit(command.run, planned, console)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not succeeded:
        raise typer.Exit(1)


@app.command()
def trace(
    run: RunDir,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .json or .json.gz; default: RUN/trace.json."),
    ] = None,
) -> None:
    """Write what every process of a run did when into a file that Perfetto opens (ui.perfetto.dev)."""
    from rlinf_async.trace.command import write_trace

    path = output or run / "trace.json"
    console.print(f"{_or_exit(write_trace, run, path)} spans in {path}; open it at ui.perfetto.dev")


@app.command()
def status(
    run: RunDir,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also the stacks of all its processes on this machine.")
    ] = False,
) -> None:
    """Say what a run is doing right now, and who waits for what."""
    from rlinf_async.status import stacks_of, status_of

    for line in _or_exit(status_of, run):
        console.print(line, markup=False, soft_wrap=True)
    for name, stack in stacks_of(run) if stacks else ():
        console.print(f"\n[bold]{name}[/]")
        console.print(stack, markup=False, soft_wrap=True)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Make a page of one run or of several: what bounds it, who waits for what, and what to change."""
    from rlinf_async.report.page import write_report

    page = _or_exit(write_report, runs, output)
    console.print(f"a page of {page.stat().st_size / 1e6:.1f} MB in {page}", markup=False, soft_wrap=True)


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
    errors.print("[bold red]error:[/] ", end="")
    errors.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
