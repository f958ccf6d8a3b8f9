"""The command line: train, explain, doctor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Asynchronous RL for VLA models, as a plugin.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ConfigName = Annotated[str, typer.Option("--config-name", "-n", help="A config by name, without .yaml.")]
ConfigDir = Annotated[Path | None, typer.Option("--config-dir", help="Where it is; default: this package.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Hydra overrides, such as async.mode=full.")]


@app.command()
def train(
    config_name: ConfigName,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    worker_logs: Annotated[bool, typer.Option(help="Show what the worker processes print.")] = False,
) -> None:
    """Run a config."""
    # Ray reads this when it is imported.
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "1" if worker_logs else "0")
    import torch.multiprocessing as multiprocessing

    from rlinf_async.hosts.rlinf.compose import compose_config
    from rlinf_async.hosts.rlinf.host import prepare
    from rlinf_async.plugin import register

    multiprocessing.set_start_method("spawn", force=True)
    register()
    cfg = compose_config(config_name, overrides or [], config_dir)
    prepare(cfg)
    from rlinf_async.hosts.rlinf.train import train as run

    run(cfg)


if __name__ == "__main__":
    app()
