"""Commands that compare settings: measured here, or on a config of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlinf_async.cli.arguments import Chosen, ConfigDir, ConfigName, Overrides, console, or_exit
from rlinf_async.termination import answering_signals


def bench(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Which to run, separated by commas. All by default.")
    ] = None,
    modes: Annotated[list[str] | None, typer.Option(help="Which to compare, separated by commas.")] = None,
    host: Annotated[str, typer.Option(help="The framework that runs them: rlinf or verl.")] = "rlinf",
    repetitions: Annotated[int, typer.Option(help="Of every mode, interleaved.")] = 3,
    steps: Annotated[int, typer.Option(help="Global steps to measure; more of them flatter less.")] = 4,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write rows into this JSON file; an interrupted bench goes on there.",
        ),
    ] = None,
) -> None:
    """Measure how fast each mode is here, and how far from the best possible."""
    from rlinf_async.lab.bench import command
    from rlinf_async.lab.bench.command import show

    cells = or_exit(
        lambda: command.plan(
            scenarios=split_at_commas(scenario),
            modes=split_at_commas(modes),
            repetitions=repetitions,
            host=host,
            steps=steps,
        )
    )
    results, missing = or_exit(lambda: command.open_results(cells, json_path=output))
    command.run(results, missing, json_path=output, console=console)
    show(results, console)
    if output is not None:
        console.print(f"rows in {output}", markup=False, soft_wrap=True)
    if any("error" in row for row in results.rows()):
        raise typer.Exit(1)


def split_at_commas(values: list[str] | None) -> list[str] | None:
    """Return the values of an option, which was given with commas, or repeated."""
    return [name.strip() for value in values for name in value.split(",")] if values else None


def sweep(
    overrides: Overrides = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="ladder, all, or settings such as off,train+rollout,full. Default: ladder, or off,full with "
            "--vary."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A key and its values, such as async.train.max_staleness=0,1,2; may be repeated: every "
            "combination is run."
        ),
    ] = None,
    success: Annotated[
        float, typer.Option(help="The success rate, 0 to 1, whose time and environment steps are measured.")
    ] = 0.8,
    seeds: Annotated[int, typer.Option(help="Runs of every setting, interleaved.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to; an interrupted sweep goes on there. Default: sweeps/CONFIG."
        ),
    ] = None,
) -> None:
    """Run a config with more and more of the levels on, or with other values of any key, and compare.

    rlinf-async sweep metaworld_ppo_mlp --vary async.train.max_staleness=0,1,2,4
    """
    from rlinf_async.lab.sweep import command

    with answering_signals():
        config = Chosen.of(config_name, config_dir, overrides)
        (name, directory), cfg = config.place, config.compose()
        sweep_plan = or_exit(
            lambda: command.plan(
                cfg,
                config_name=name,
                config_dir=directory,
                overrides=config.overrides,
                modes=modes,
                seeds=seeds,
                output=output,
                vary=vary,
                success=success,
            )
        )
    try:
        all_done = or_exit(command.run, sweep_plan, console)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not all_done:
        raise typer.Exit(1)
