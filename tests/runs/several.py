"""Several runs in one process and one Ray cluster, one after the other, as Hydra's multirun does.

    python -m tests.runs.several FILE

FILE holds a list of `[config, overrides]`. What is written about each run lies between its lines.
"""

import json
import sys
import traceback
from pathlib import Path

BEGINS, ENDS = "RUN {} BEGINS", "RUN {} ENDS WITH {}"


def main(file: Path) -> None:
    import torch.multiprocessing as multiprocessing

    multiprocessing.set_start_method("spawn", force=True)
    from rlinf_async.compose import compose_config
    from rlinf_async.hosts.rlinf.hooks import prepare, say_once
    from rlinf_async.hosts.rlinf.train import train
    from rlinf_async.plugin import register

    register()
    for number, (config, overrides) in enumerate(json.loads(file.read_text())):
        print(BEGINS.format(number), flush=True)  # noqa: T201
        status = 0
        try:
            cfg = compose_config(config, overrides, None)
            say_once(prepare(cfg), cfg)
            train(cfg)
        except Exception:  # noqa: BLE001 - the next one runs all the same
            traceback.print_exc(file=sys.stdout)
            status = 1
        print(ENDS.format(number, status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
