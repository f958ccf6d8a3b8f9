"""What a step of a config is, whichever levels are on: read from the config, not from its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

SEED_STRIDE = 1000
"""Between the seeds of two runs. Workers add their rank to the seed, so that neighbours would overlap."""
LEAST_STEPS = 2
"""The first step is not measured."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes and seeds that all cells of a sweep share."""

    env_steps: int
    """Environment steps that a step trains for the first time."""
    stages: int
    """Pipeline stages of an env worker of RLinf's own."""
    seeds: tuple[tuple[str, int], ...]
    """Keys that hold a seed, and what the config gives them."""
    backends: tuple[str, ...]
    """Where RLinf's metrics go."""

    @classmethod
    def read(cls, cfg: DictConfig) -> Workload:
        """From a composed config.

        Raises:
            ValueError: it trains nothing, too few steps to compare, or lacks what RLinf needs.
        """
        _check_trains(cfg)
        chunk = int(_needed(cfg, "actor.model.num_action_chunks"))
        decisions = int(_needed(cfg, "env.train.max_steps_per_rollout_epoch")) // chunk
        rollouts = int(_needed(cfg, "env.train.total_num_envs")) * int(
            _select(cfg, "env.train.rollout_epoch", 1)
        )
        seeds = {
            "actor.seed": _needed(cfg, "actor.seed"),
            "env.train.seed": _select(cfg, "env.train.seed", None),
        }
        return cls(
            env_steps=rollouts * decisions * chunk,
            stages=int(_select(cfg, "rollout.pipeline_stage_num", 1)),
            seeds=tuple((key, int(seed)) for key, seed in seeds.items() if seed is not None),
            backends=_backends(OmegaConf.select(cfg, "runner.logger.logger_backends", default="tensorboard")),
        )

    def seeded(self, seed: int) -> tuple[str, ...]:
        """The overrides of run number `seed`; number 0 has the config's own seeds."""
        return tuple(f"{key}={first + seed * SEED_STRIDE}" for key, first in self.seeds)

    @property
    def logged(self) -> tuple[str, ...]:
        """What makes RLinf write the event files by which its own runs are measured, where it would not."""
        if "tensorboard" in self.backends:
            return ()
        return (f"++runner.logger.logger_backends=[{','.join((*self.backends, 'tensorboard'))}]",)


def _check_trains(cfg: DictConfig) -> None:
    if _select(cfg, "runner.only_eval", False):
        raise ValueError("runner.only_eval=true trains nothing that could be compared; set it to false")
    task = _needed(cfg, "runner.task_type")
    if task != "embodied":
        raise ValueError(
            f"runner.task_type={task!r} has no asynchronous levels to compare; nearest: embodied"
        )
    epochs, most = int(_needed(cfg, "runner.max_epochs")), int(_select(cfg, "runner.max_steps", -1))
    key, steps = ("max_steps", most) if 0 <= most < epochs else ("max_epochs", epochs)
    if steps < LEAST_STEPS:
        raise ValueError(
            f"runner.{key}={steps} leaves nothing to measure, because a run's first step is left out; "
            f"nearest: {LEAST_STEPS}"
        )


def _backends(value: Any) -> tuple[str, ...]:
    """As RLinf's logger reads it: a list, one name, or null for none."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, ListConfig) else (str(value),)


def _needed(cfg: DictConfig, key: str) -> Any:
    value = OmegaConf.select(cfg, key)
    if value is None:
        raise ValueError(f"the config gives no {key}, which RLinf needs")
    return value


def _select(cfg: DictConfig, key: str, default: Any) -> Any:
    value = OmegaConf.select(cfg, key)
    return default if value is None else value
