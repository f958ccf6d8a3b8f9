"""The command: `python -m benchmarks.gpu`."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.runs import Bench, Row, Run, repetitions, rows
from rlinf_async.config import MODE_LEVELS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

QUICK_SIZES = {
    "decision_ms": 2.0,
    "total_envs": 8,
    "env_workers": 2,
    "horizon": 4,
    "micro_batch": 8,
    "warmup": 1,
    "batches": 2,
    "repetitions": 1,
}
"""Sizes for a trial run; its numbers mean nothing."""


@app.command()
def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="File for settings and rows.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Make a trial run; its numbers mean nothing.")
    ] = False,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    modes: Annotated[str, typer.Option(help="Modes, separated by commas; off always runs.")] = ",".join(
        MODE_LEVELS
    ),
    params: Annotated[
        int, typer.Option(help="Approximate number of parameters of the policy.")
    ] = Bench.params,
    envs: Annotated[str, typer.Option(help="emulated or metaworld.")] = Bench.envs,
    decision_ms: Annotated[float | None, typer.Option(help="Mean time of an emulated decision.")] = None,
    total_envs: Annotated[int | None, typer.Option(help="Environments.")] = None,
    repetitions: Annotated[int | None, typer.Option(help="Runs of each mode; medians are shown.")] = None,
    optimizer_steps: Annotated[int, typer.Option(help="Optimizer steps per batch.")] = Bench.optimizer_steps,
    measure_ratios: Annotated[
        bool, typer.Option(help="async.advanced.measure_ratios")
    ] = Bench.measure_ratios,
    max_wait_ms: Annotated[float | None, typer.Option(help="async.rollout.max_wait_ms")] = None,
) -> None:
    """Compare the synchronous loop with each level and with all three, on one device."""
    asked = {"decision_ms": decision_ms, "total_envs": total_envs, "repetitions": repetitions}
    sizes: dict[str, Any] = QUICK_SIZES if quick else {}
    try:
        bench = Bench(
            modes=tuple(mode.strip() for mode in modes.split(",")),
            envs=envs,
            device=device,
            params=params,
            optimizer_steps=optimizer_steps,
            measure_ratios=measure_ratios,
            max_wait_ms=max_wait_ms,
            **sizes | {name: value for name, value in asked.items() if value is not None},
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if device == "cuda":
        torch.set_num_threads(2)  # leaves the other cores to the simulators
    _run(bench, json_file)


def _run(bench: Bench, json_file: Path | None) -> None:
    # A pipe or a log file has no terminal width.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    runs: list[tuple[str, Run]] = []
    for mode, one in repetitions(bench):
        runs.append((mode, one))
        console.print(f"{mode:9s} {one['env_steps_per_second']:10.1f} env steps/s", style="dim")
        # After every run, so that an interrupted benchmark keeps its finished runs.
        if json_file is not None:
            _write(json_file, bench, rows(bench, runs))
    console.print(_table(bench, rows(bench, runs)))


def _write(path: Path, bench: Bench, found: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"settings": asdict(bench), "machine": _machine(bench.device), "rows": found}
    path.write_text(json.dumps(document, indent=2) + "\n")


def _machine(device: str) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def _table(bench: Bench, found: Sequence[Row]) -> Table:
    what = f"{found[0]['parameters']:,} parameters on {bench.device}"
    table = Table(title=f"{what}, {bench.total_envs} {bench.envs} environments", title_justify="left")
    table.add_column("mode")
    busy = ("device busy", "inference", "learner", "envs")
    for name in ("env steps/s", "x sync", *busy, "batch", "staleness", "memory"):
        table.add_column(name, justify="right")
    for row in found:
        shares = (row[name] for name in ("device_busy", "inference_busy", "learner_busy", "env_busy"))
        peak = row["peak_memory_bytes"]
        table.add_row(
            row["mode"],
            f"{row['env_steps_per_second']:.1f}",
            f"{row['ratio']:.2f}",
            *(f"{share:.0%}" for share in shares),
            "{mean:.1f} ({min:g}-{max:g})".format(**row["batch_size"]),
            "{mean:.2f}".format(**row["staleness"]),
            "-" if peak is None else f"{peak / 2**30:.1f} GiB",
        )
    return table


if __name__ == "__main__":
    app()
