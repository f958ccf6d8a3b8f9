"""Runs training in the process of the command, through veRL's `run_ppo`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.v1 import get_trainer_cls

# Registers the trainer even where VERL_USE_EXTERNAL_PLUGINS keeps veRL from loading plugins.
from rlinf_async.hosts.verl import plugin
from rlinf_async.hosts.verl.recognition import TRAINER_MODE
from rlinf_async.hosts.verl.shared import SHARED
from rlinf_async.observe.display import RunDisplay
from rlinf_async.ray_runtime.cluster.starting import starting_ray

__all__ = ["InThisProcess", "plugin", "train"]


def train(config: DictConfig) -> None:
    """Start Ray as veRL does, and train; without TransferQueue, which this trainer does not use."""
    with starting_ray(say=RunDisplay().note, shared=SHARED):
        run_ppo(config, task_runner_class=InThisProcess)


class InThisProcess:
    """Replaces the Ray actor class that `run_ppo` expects; its method runs in this process.

    So the terminal shows the run, an interrupt reaches it, and an error keeps its type.
    """

    @classmethod
    def options(cls, **_: object) -> type[InThisProcess]:
        return cls

    @staticmethod
    def remote() -> Any:
        return SimpleNamespace(run=_Call(_run))


class _Call:
    """A function with the interface of a Ray actor's method."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def remote(self, *arguments: object) -> Any:
        # `run_ppo` passes the result to `ray.get`, which takes only references.
        return ray.put(self._function(*arguments))


def _run(config: DictConfig) -> None:
    """Do the work of veRL's task runner, without TransferQueue and agent loops."""
    # As veRL's runner does: a section passed to a process by itself could not resolve references out of it.
    OmegaConf.resolve(config)
    trainer = get_trainer_cls(TRAINER_MODE)(config=config)
    success = False
    try:
        trainer.init()
        trainer.fit(None)
        success = True
    finally:
        # As veRL's runner does; the logger is None until `fit` builds it.
        if trainer.logger is not None:
            trainer.logger.finish(exit_code=0 if success else 1)
