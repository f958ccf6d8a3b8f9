"""One run in a process of its own: `python -m rlinf_async.bench.run WIRING CONFIG [override ...]`."""

from __future__ import annotations

import logging
import os
import sys

WIRINGS = ("plugin", "async-ppo")
"""The script whose wiring is used: RLinf's for embodied agents, with this plugin, or its for async PPO."""


def main(wiring: str, config: str, *overrides: str) -> None:
    """Compose a config and run it."""
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")
    os.environ.setdefault("RLINF_LOG_LEVEL", "WARNING")
    logging.disable(logging.INFO)
    import torch.multiprocessing as multiprocessing

    multiprocessing.set_start_method("spawn", force=True)
    from rlinf_async.hosts.rlinf.compose import compose_config
    from rlinf_async.hosts.rlinf.host import prepare
    from rlinf_async.hosts.rlinf.train import train, train_stock_async_ppo

    cfg = compose_config(config, overrides)
    prepare(cfg)
    {"plugin": train, "async-ppo": train_stock_async_ppo}[wiring](cfg)


if __name__ == "__main__":
    main(*sys.argv[1:])
