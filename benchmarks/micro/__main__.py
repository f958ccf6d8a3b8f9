"""The commands: one per benchmark."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Rounds = Annotated[int, typer.Option(help="Of each number the median over the rounds is kept.")]
File = Annotated[
    Path | None, typer.Option("--json", help="Also write the result into this file, by command.")
]


@app.command()
def requests(rounds: Rounds = 5, file: File = None) -> None:
    """An action request and its answer, without inference: ours and RLinf's own channels."""
    from benchmarks.micro.requests import measure

    _report("requests", measure(rounds), file, packages=("ray", "rlinf", "torch", "numpy"))


@app.command()
def rollouts(rounds: Rounds = 5, file: File = None) -> None:
    """A rollout from the gate to the learner that trains it, without simulators, inference and training."""
    from benchmarks.micro.rollouts import measure

    _report("rollouts", measure(rounds), file, packages=("ray", "torch", "numpy"))


@app.command()
def core(rounds: Rounds = 5, file: File = None) -> None:
    """Batcher, gate and buffer on one core, for 1 to 4,096 shards."""
    from benchmarks.micro.core import measure

    _report("core", measure(rounds), file, packages=())


@app.command()
def brokers(rounds: Rounds = 5, file: File = None) -> None:
    """The same with the waits in front of it: all shards as tasks of one event loop."""
    from benchmarks.micro.brokers import requests_per_second
    from benchmarks.micro.core import measure

    _report("brokers", measure(rounds, requests_per_second), file, packages=())


@app.command()
def spans(rounds: Rounds = 5, file: File = None) -> None:
    """What a trace costs: CPU time of a span that is written, and of one that is not."""
    from benchmarks.micro.spans import measure

    _report("spans", measure(rounds), file, packages=())


@app.command()
def ratios(rounds: Rounds = 5, file: File = None) -> None:
    """What measuring ratios costs a learner rank: copies of a gigabyte of weights to the CPU and back."""
    from benchmarks.micro.ratios import measure

    _report("ratios", measure(rounds), file, packages=("torch",))


@app.command()
def weights(
    rounds: Rounds = 5,
    megabytes: Annotated[int, typer.Option(help="The size of the weights, in bfloat16.")] = 1024,
    file: File = None,
) -> None:
    """New weights from a learner to two inference ranks: past Ray, and through Ray's object store."""
    from benchmarks.micro.weights import measure

    _report("weights", measure(rounds, megabytes), file, packages=("ray", "torch", "numpy"))


def _report(name: str, result: dict[str, Any], file: Path | None, *, packages: tuple[str, ...]) -> None:
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    command = " ".join(["python -m benchmarks.micro", *sys.argv[1:]])
    entry = {"command": command, "versions": versions, **result}
    print(json.dumps({name: entry}, indent=2))
    if file is not None:
        held = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**held, name: entry}, indent=2) + "\n")


if __name__ == "__main__":
    app()
