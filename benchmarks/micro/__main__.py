"""The commands, one for each benchmark."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Rounds = Annotated[int, typer.Option(help="Rounds of the measurement; results are medians over them.")]
Shards = Annotated[int, typer.Option(help="The largest number of shards that is measured.")]
File = Annotated[
    Path | None,
    typer.Option("--json", help="Also write the result to this file, under the name of the command."),
]


@app.command()
def requests(rounds: Rounds = 5, file: File = None) -> None:
    """Measure an action request and its answer, without inference: our channel and RLinf's own channels."""
    from benchmarks.micro.requests import measure

    _report("requests", measure(rounds), file, packages=("ray", "rlinf", "torch", "numpy"))


@app.command()
def rollouts(rounds: Rounds = 5, file: File = None) -> None:
    """Measure a rollout's way from gate to learner, without simulators, inference and training."""
    from benchmarks.micro.rollouts import measure

    _report("rollouts", measure(rounds), file, packages=("ray", "torch", "numpy"))


@app.command()
def pictures(
    rounds: Rounds = 5,
    environments: Annotated[int, typer.Option(help="Environments, each with 29 MB a rollout.")] = 64,
    file: File = None,
) -> None:
    """Measure rollouts with pictures from env worker to micro-batches: our way and RLinf's own."""
    from benchmarks.micro.pictures import measure

    _report("pictures", measure(rounds, environments), file, packages=("ray", "rlinf", "torch", "numpy"))


@app.command()
def copies(rounds: Rounds = 5, file: File = None) -> None:
    """Measure the copies and the mapped pages that rollouts with pictures cost at least."""
    from benchmarks.micro.copies import measure

    _report("copies", measure(rounds), file, packages=("numpy",))


@app.command()
def core(rounds: Rounds = 5, shards: Shards = 4096, file: File = None) -> None:
    """Measure batcher, gate and buffer on one core, for 1 to 4,096 shards."""
    from benchmarks.micro.core import measure

    _report("core", measure(rounds, most_shards=shards), file, packages=())


@app.command()
def brokers(rounds: Rounds = 5, shards: Shards = 4096, file: File = None) -> None:
    """Measure the same as `core` through the brokers, with all shards as tasks of one event loop."""
    from benchmarks.micro.brokers import REQUEST_COUNT, cpu_seconds
    from benchmarks.micro.core import measure

    found = measure(rounds, cpu_seconds, REQUEST_COUNT, most_shards=shards)
    _report("brokers", found, file, packages=())


@app.command()
def channels(rounds: Rounds = 3, file: File = None) -> None:
    """Measure the request channels of one to three nodes, one for all and one a node, with 1,024 shards."""
    from benchmarks.micro.channels import measure

    _report("channels", measure(rounds), file, packages=("torch",))


@app.command()
def takes(rounds: Rounds = 3, file: File = None) -> None:
    """Measure a request channel's CPU time for a batch of 1, 4 and 20 requests of its node."""
    from benchmarks.micro.takes import measure

    _report("takes", measure(rounds), file, packages=("torch",))


@app.command()
def threads(rounds: Rounds = 3, file: File = None) -> None:
    """Measure what the wire waits for in a process with 64 threads."""
    from benchmarks.micro.threads import measure

    _report("threads", measure(rounds), file, packages=("torch", "numpy"))


@app.command()
def spans(rounds: Rounds = 5, file: File = None) -> None:
    """Measure the CPU time of a span with the trace on, and with it off."""
    from benchmarks.micro.spans import measure

    _report("spans", measure(rounds), file, packages=())


@app.command()
def steps(rounds: Rounds = 5, file: File = None) -> None:
    """Measure the CPU time of a step of RLinf's env worker, with and without reads of its config."""
    from benchmarks.micro.steps import measure

    _report("steps", measure(rounds), file, packages=("rlinf", "torch", "omegaconf"))


@app.command()
def rewards(rounds: Rounds = 3, shards: Shards = 16, file: File = None) -> None:
    """Measure rollouts with an emulated reward model: waited for in each step, and beside the steps."""
    from benchmarks.micro.rewards import measure

    _report("rewards", measure(rounds, shards), file, packages=("torch",))


@app.command()
def ratios(rounds: Rounds = 5, file: File = None) -> None:
    """Measure the cost of `measure_ratios`: a learner rank copies 1 GB of weights to the CPU and back."""
    from benchmarks.micro.ratios import measure

    _report("ratios", measure(rounds), file, packages=("torch",))


@app.command()
def differences(
    rounds: Rounds = 5,
    rates: Annotated[int, typer.Option(help="Learning rates that are measured, the lowest first.")] = 3,
    file: File = None,
) -> None:
    """Measure the difference of two versions of weights: bytes and CPU time, for learning rates and steps."""
    from benchmarks.micro.differences import measure

    _report("differences", measure(rounds, rates), file, packages=("torch", "numpy"))


@app.command()
def start(
    rounds: Rounds = 3,
    beside: Annotated[
        Path | None,
        typer.Option(help="Another checkout of this package, with a .venv of its own, measured by turns."),
    ] = None,
    file: File = None,
) -> None:
    """Measure the CPU and wall seconds of a run of one step, which are nearly all for starting."""
    from benchmarks.micro.start import measure

    _report("start", measure(rounds, beside), file, packages=("ray", "rlinf", "torch"))


@app.command()
def weights(
    rounds: Rounds = 5,
    megabytes: Annotated[int, typer.Option(help="Size of the bfloat16 weights, in MiB.")] = 1024,
    file: File = None,
) -> None:
    """Measure new weights from a learner to two inference ranks: by the plugin, and by Ray's object store."""
    from benchmarks.micro.weights import measure

    _report("weights", measure(rounds, megabytes), file, packages=("ray", "torch", "numpy"))


def _report(name: str, result: dict[str, Any], file: Path | None, *, packages: tuple[str, ...]) -> None:
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    command = " ".join(["python -m benchmarks.micro", *sys.argv[1:]])
    entry = {"command": command, "versions": versions, **result}
    print(json.dumps({name: entry}, indent=2))
    if file is not None:
        earlier = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**earlier, name: entry}, indent=2) + "\n")


if __name__ == "__main__":
    app()
