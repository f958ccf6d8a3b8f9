"""Runs of configs for veRL, one after the other in this process and on one cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from rlinf_async.compose import compose_config
from rlinf_async.hosts.verl.host import VerlHost


def main(file: str) -> None:
    for number, (config, overrides) in enumerate(json.loads(Path(file).read_text())):
        typer.echo(f"RUN {number} BEGINS")
        cfg, host = compose_config(config, overrides), VerlHost()
        host.prepare(cfg)
        host.train(cfg)
        typer.echo(f"RUN {number} ENDS")


if __name__ == "__main__":
    main(sys.argv[1])
