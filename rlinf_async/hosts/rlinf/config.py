"""RLinf's config, read and prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import rlinf  # noqa: F401  # its resolvers, such as ${multiply:2,3}
import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.config import BLOCK_KEY, AsyncConfig
from rlinf_async.config.checked import checked_config
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import plain, read_block, write_rollout
from rlinf_async.hosts.exactness import why_learner_scores
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster
from rlinf_async.hosts.judge.reasons import Reason, RefusedError, reasons_of, refuse
from rlinf_async.hosts.rlinf.doorway import names_our_parts
from rlinf_async.hosts.rlinf.episode_starts import has_stock_scenes
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.placement import NODE, Machines, occupancy, world_sizes
from rlinf_async.hosts.rlinf.reasons import Fit, fit
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.settings import read_settings
from rlinf_async.hosts.rlinf.translation import as_rlinf_counts, translated
from rlinf_async.hosts.rlinf.view import RLinfView


def read_fit(cfg: DictConfig) -> Fit:
    """Fit the `async` block and the rest of a config together.

    Raises:
        ValueError: the block is not valid.
    """
    asynchrony = checked_config(read_block(cfg))
    return fit(_values(cfg)) if asynchrony.active else Fit(asynchrony=asynchrony)


def _values(cfg: DictConfig) -> dict[str, Any]:
    """Return the config with old keys moved, and the block with the settings of RLinf's asynchronous keys."""
    values = as_rlinf_counts(TABLE.without_nulls(plain(cfg)))
    return {**values, BLOCK_KEY: translated(values, read_block(cfg))}


def write_nulls(cfg: DictConfig) -> None:
    """Do `TABLE.without_nulls` in place, as RLinf's own code fails at such a null."""
    for key, value in TABLE.nulls(plain(cfg)):
        OmegaConf.update(cfg, key, value)


def asks_for_levels(cfg: DictConfig) -> bool:
    """Return True if the `async` block of a config has a level on.

    Raises:
        ValueError: the block is not valid.
    """
    return checked_config(read_block(cfg)).active


def is_active(cfg: Any) -> bool:
    """Return True if `cfg` is the config of a run with a level on."""
    # The hooks pass the first argument of any worker class or runner, which need not be a config.
    return isinstance(cfg, DictConfig) and not cfg.runner.get("only_eval", False) and asks_for_levels(cfg)


def uses_us(cfg: DictConfig) -> bool:
    """Return True if workers must load this package: a level is on, or an environment or model of ours is
    used.
    """
    return asks_for_levels(cfg) or names_our_parts(cfg)


def resolve(
    cfg: DictConfig,
    *,
    sizes: Mapping[str, int] | None = None,
    cluster: Machines | None = None,
    beside: Sequence[Reason] = (),
) -> RLinfSettings:
    """Check a config whose async block is active, and resolve every `auto`.

    `sizes` are the processes per component once the cluster is up; before, they are computed from the
    placement and the `cluster`, by default of machines like this one. `beside` are reasons from other checks,
    which are reported together with those found here.

    Raises:
        ValueError: an unsupported feature or sizes that do not fit, with the remedy.
    """
    values = _values(cfg)
    fitting = fit(values)
    try:
        hardware = cluster or machines(cfg)
        if sizes is None:
            sizes = world_sizes(values["cluster"], hardware)
        settings = read_settings(values, fitting.asynchrony, sizes)
        settings = replace(settings, learner_scores=_why_learner_scores(values, fitting.asynchrony, hardware))
    except ValueError as error:
        raise RefusedError([*beside, *fitting.reasons, *reasons_of(error)]) from error
    refuse([*beside, *fitting.reasons])
    return settings


def _why_learner_scores(cfg: Mapping[str, Any], asynchrony: AsyncConfig, machines: Machines) -> str:
    fsdp, places = cfg["actor"].get("fsdp_config") or {}, occupancy(cfg["cluster"], machines)
    # Processes that are placed on nodes share no accelerator.
    shared = {kind for kind, _ in places["actor"].keys() & places["rollout"].keys()} - {NODE}
    learner = lookup(fsdp, "mixed_precision.param_dtype") or lookup(cfg, "actor.model.precision")
    # Autocast decides the type, whatever the type of FSDP's gathered parameters.
    if lookup(fsdp, "amp_autocast.enabled"):
        learner = lookup(fsdp, "amp_autocast.precision")
    return why_learner_scores(
        asynchrony,
        learner=learner,
        inference=lookup(cfg, "rollout.model.precision"),
        share=machines.gpus > 0 and bool(shared),
    )


def write_back(cfg: DictConfig, settings: RLinfSettings) -> None:
    """Write the resolved settings into `cfg`, for RLinf's own code and for readers of the run directory."""
    # Read before anything is written: the changes depend on the settings that they replace.
    fitting, block = read_fit(cfg), read_block(cfg)
    write_nulls(cfg)
    with open_dict(cfg):
        for name in cfg[BLOCK_KEY].keys() & block.keys():
            if isinstance(cfg[BLOCK_KEY][name], bool):
                cfg[BLOCK_KEY][name] = block[name]
        for change in fitting.changes:
            OmegaConf.update(cfg, change.key, change.value)
        for level in fitting.dropped:
            OmegaConf.update(cfg, f"{BLOCK_KEY}.{level}.enabled", False)
        cfg.actor.micro_batch_size = settings.micro_batch_size
    write_shards(cfg, settings)


def write_shards(cfg: DictConfig, settings: RLinfSettings) -> None:
    """Write the number of shards, and the other resolved settings of level 2, into `cfg`."""
    # RLinf calls an env shard a pipeline stage of an env worker. With a reward model, its check of the
    # config, which comes next, allows one stage only, and scenes depend on the stages of RLinf's own loop. In
    # these cases env workers read the number of shards from the `async` block.
    values = plain(cfg)
    in_block = settings.asynchrony.rollout.enabled and has_stock_scenes(values["env"]["train"])
    if not (in_block or RLinfView.of(values).scored_by_workers):
        with open_dict(cfg):
            cfg.rollout.pipeline_stage_num = settings.plan.shards_per_worker
    write_rollout(cfg, settings)


def machines(cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> Machines:
    """The machines that the processes of `cfg` are placed on, with the numbers that `cluster` leaves open."""
    return Machines(
        nodes=int(cfg.cluster.get("num_nodes", 1)) if cluster.nodes is None else cluster.nodes,
        gpus=torch.cuda.device_count() if cluster.gpus is None else cluster.gpus,
        named=cluster.gpus is not None or cluster.nodes is not None,
    )
