"""Reads the facts that all runs of one RLinf config share, from the config alone."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.host import StockRuns, Workload
from rlinf_async.hosts.judge.presence import names_in
from rlinf_async.hosts.rlinf.settings import last_step

OFF_NOTE = "off: RLinf's own runner and workers; rollout s and learner s are the times that they report."


def workload(cfg: DictConfig) -> Workload:
    """Return the workload of a composed config.

    Raises:
        ValueError: the run trains nothing, or the config lacks a key that RLinf needs.
    """
    _check_trains(cfg)
    seeds = {
        "actor.seed": _required_value(cfg, "actor.seed"),
        "env.train.seed": _select(cfg, "env.train.seed", None),
    }
    return Workload(
        run_dir="runner.logger.log_path",
        steps=last_step(cfg.runner),
        seeds={key: int(seed) for key, seed in seeds.items() if seed is not None},
        overrides=_logger_overrides(
            OmegaConf.select(cfg, "runner.logger.logger_backends", default="tensorboard")
        ),
        off=OFF_NOTE,
        stock=StockRuns(
            env_steps=env_steps_of(cfg), stages=int(_select(cfg, "rollout.pipeline_stage_num", 1))
        ),
    )


def _check_trains(cfg: DictConfig) -> None:
    if _select(cfg, "runner.only_eval", False):
        raise ValueError("runner.only_eval=true trains nothing that could be compared; set it to false")
    task = _required_value(cfg, "runner.task_type")
    if task != "embodied":
        raise ValueError(
            f"runner.task_type={task!r} has no asynchronous levels to compare; nearest: embodied"
        )


def env_steps_of(cfg: DictConfig) -> int:
    """Return the environment steps of all environments in one training step."""
    chunk = int(_required_value(cfg, "actor.model.num_action_chunks"))
    decisions = int(_required_value(cfg, "env.train.max_steps_per_rollout_epoch")) // chunk
    epochs = int(_select(cfg, "env.train.rollout_epoch", 1))
    return int(_required_value(cfg, "env.train.total_num_envs")) * epochs * decisions * chunk


def _logger_overrides(backends: Any) -> tuple[str, ...]:
    """Return the overrides with which RLinf's own runs write event files, for measuring them.

    `backends`: the logger's setting: a list, one name, or null for none.
    """
    loggers = names_in(backends)
    if "tensorboard" in loggers:
        return ()
    return (f"++runner.logger.logger_backends=[{','.join((*loggers, 'tensorboard'))}]",)


def _required_value(cfg: DictConfig, key: str) -> Any:
    value = OmegaConf.select(cfg, key)
    if value is None:
        raise ValueError(f"the config gives no {key}, which RLinf needs")
    return value


def _select(cfg: DictConfig, key: str, default: Any) -> Any:
    value = OmegaConf.select(cfg, key)
    return default if value is None else value
