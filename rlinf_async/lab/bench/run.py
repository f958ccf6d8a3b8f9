"""A run in its own process: `python -m rlinf_async.lab.bench.run WIRING CONFIG [override ...]`."""

from __future__ import annotations

import logging
import os
import sys


def main(wiring: str, config: str, *overrides: str) -> None:
    """Compose a config and run it, wired as RLinf's script for embodied agents or as its async PPO script."""
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")
    os.environ.setdefault("RLINF_LOG_LEVEL", "WARNING")
    logging.disable(logging.INFO)
    import torch.multiprocessing as multiprocessing

    multiprocessing.set_start_method("spawn", force=True)
    from rlinf_async.compose import compose_config
    from rlinf_async.hosts.host import host_of

    cfg = compose_config(config, overrides)
    host = host_of(cfg)
    host.prepare(cfg)
    if wiring == "async-ppo":
        from rlinf_async.lab.bench.stock_async_ppo import train_stock_async_ppo

        train_stock_async_ppo(cfg)
    else:
        host.train(cfg)


if __name__ == "__main__":
    main(*sys.argv[1:])
