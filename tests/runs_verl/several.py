"""Runs of configs for veRL, one after the other in this process and on one cluster.

    python -m tests.runs_verl.several FILE

FILE holds a list of `[config, overrides, folders]`. Where folders are named, the run goes on in the second, a
copy of the first. What is written about each run lies between its lines.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from pathlib import Path

from rlinf_async.compose import compose_config
from rlinf_async.hosts.verl.host import VerlHost
from tests.runs.several import BEGINS, ENDS


def main(file: Path) -> None:
    for number, (config, overrides, folders) in enumerate(json.loads(file.read_text())):
        print(BEGINS.format(number), flush=True)  # noqa: T201
        status = 0
        try:
            if folders:
                shutil.copytree(*folders, ignore=shutil.ignore_patterns("stacks"))  # named pipes
            cfg, host = compose_config(config, overrides), VerlHost()
            host.prepare(cfg)
            host.train(cfg)
        except Exception:  # noqa: BLE001 - the next one runs all the same
            traceback.print_exc(file=sys.stdout)
            status = 1
        print(ENDS.format(number, status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
