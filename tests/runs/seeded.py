"""What workers of RLinf load by RLINF_EXT_MODULE in tests that compare runs number by number.

`SEEDED_SIDE=plugin` installs the plugin; `SEEDED_SIDE=stock` leaves RLinf alone, but for what the config
asks for and what this machine lacks. Either way sampling is seeded, and each process leaves a mark in the
directory `SEEDED_MARKS` that says whose hooks it has: RLinf goes on when an extension module fails.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

STOCK = "rlinf.scheduler.worker.worker"
PLUGIN = "rlinf_async.hosts.rlinf.worker_process"
SEED = 7


def register() -> None:
    if os.environ["SEEDED_SIDE"] == "plugin":
        from rlinf_async.plugin import register as install

        install()
    else:
        supply()
    # RLinf seeds neither the weights nor the actions that it draws, and torch starts from another seed in
    # each process.
    torch.manual_seed(SEED)
    (Path(os.environ["SEEDED_MARKS"]) / os.environ["WORKER_NAME"].replace(":", "-")).write_text(hooks())


def supply() -> None:
    """Give RLinf a CPU and the environment, without any hook.

    Both are the plugin's own parts, used as parts: the platform stands in for torch.cuda and computes
    nothing, and a run cannot be compared with one in another environment.
    """
    from rlinf.scheduler import Worker

    from rlinf_async.hosts.rlinf.worker_process import provide_cpu_platform
    from rlinf_async.lab.demo.simulators.metaworld_env import MetaWorldTaskEnv

    provide_cpu_platform(Worker)
    env_worker = sys.modules.get("rlinf.workers.env.env_worker")
    if env_worker is not None:
        env_worker.get_env_cls = lambda *_: MetaWorldTaskEnv


def hooks() -> str:
    """The module whose hooks this process has: `STOCK` or `PLUGIN`."""
    module = sys.modules.get(PLUGIN)
    return PLUGIN if module is not None and module.WORKER_HOOKS.installed else STOCK
