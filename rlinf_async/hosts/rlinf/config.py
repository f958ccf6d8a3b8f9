"""RLinf's config, read and prepared: the one place that knows the key `async`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.rlinf.placement import Machines, world_sizes
from rlinf_async.hosts.rlinf.refusals import refuse_unsupported
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.simulators import hold_one_environment

KEY = "async"


def read_async(cfg: DictConfig) -> AsyncConfig:
    """The `async` block of a config, or the one that turns everything off."""
    block = cfg.get(KEY) if KEY in cfg else None
    plain = OmegaConf.to_container(block, resolve=True) if OmegaConf.is_config(block) else block
    if plain is not None and not isinstance(plain, Mapping):
        raise ValueError(f"async={plain!r} must be a block; nearest: async.mode={plain!r}")
    return AsyncConfig.from_mapping(plain)


def uses_us(cfg: DictConfig) -> bool:
    """Whether workers must load this package: a level is on, or an environment or model of ours is used."""
    if read_async(cfg).active or cfg.actor.model.model_type in entry_points(group="rlinf_async.models").names:
        return True
    return any(OmegaConf.select(cfg, f"env.{part}.env_class") for part in ("train", "eval"))


def resolve(
    cfg: DictConfig, *, sizes: Mapping[str, int] | None = None, cluster: Machines | None = None
) -> Settings:
    """Check a config whose async block is active, and resolve every `auto`.

    `sizes` are the processes per component when the cluster is up; before, they are worked out from the
    placement and the `cluster`, by default of machines like this one.

    Raises:
        ValueError: an unsupported feature or sizes that do not fit, with the remedy.
    """
    asynchrony = read_async(cfg)
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    refuse_unsupported(plain, asynchrony)
    if sizes is None:
        sizes = world_sizes(plain["cluster"], cluster or machines(cfg))
    settings = Settings.read(plain, asynchrony, sizes)
    _check_evaluation(plain, settings)
    return settings


def write_back(cfg: DictConfig, settings: Settings) -> None:
    """Write what was resolved where RLinf's own code, and the reader of the run directory, look for it."""
    with open_dict(cfg):
        # An env shard is what RLinf calls a pipeline stage of an env worker.
        cfg.rollout.pipeline_stage_num = settings.plan.shards_per_worker
        cfg.actor.micro_batch_size = settings.micro_batch_size
        if settings.asynchrony.rollout.enabled:
            rollout = {
                "shards": settings.plan.shards_per_worker,
                "max_batch_size": settings.max_batch_size,
                "max_wait_ms": settings.asynchrony.rollout.max_wait * 1000,
            }
            cfg[KEY] = OmegaConf.merge(cfg[KEY], {"rollout": rollout})


def machines(cfg: DictConfig, *, gpus: int | None = None, nodes: int | None = None) -> Machines:
    """The cluster that `cfg` is placed on: as many nodes as it says, each like this machine, unless told."""
    return Machines(
        nodes=int(cfg.cluster.get("num_nodes", 1)) if nodes is None else nodes,
        gpus=torch.cuda.device_count() if gpus is None else gpus,
        named=gpus is not None or nodes is not None,
    )


def _check_evaluation(cfg: Mapping[str, Any], settings: Settings) -> None:
    if cfg["runner"].get("val_check_interval", -1) <= 0:
        return
    shards, total = settings.plan.shards, int(cfg["env"]["eval"]["total_num_envs"])
    group = int(cfg["env"]["eval"].get("group_size") or 1)
    if hold_one_environment(cfg["env"]["eval"]) and total != shards:
        raise ValueError(
            f"env.eval.total_num_envs={total}: {cfg['env']['eval']['env_type']} simulates one environment at "
            f"a time on the CPU; use {shards}, one for each shard"
        )
    if total % (shards * group):
        nearest = max(1, round(total / (shards * group))) * shards * group
        raise ValueError(
            f"env.eval.total_num_envs={total} does not divide into {shards} shards of groups of {group}; "
            f"nearest: {nearest}"
        )
    if settings.asynchrony.rollout.enabled and total // shards > settings.max_batch_size:
        raise ValueError(
            f"a shard of {total // shards} evaluation environments exceeds max_batch_size="
            f"{settings.max_batch_size}; set async.rollout.max_batch_size to at least {total // shards}"
        )
