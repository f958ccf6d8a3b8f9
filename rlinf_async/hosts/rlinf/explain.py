"""What a config will do, worked out without starting Ray."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import VECTORISED_SIMULATORS
from rlinf_async.hosts.rlinf.config import machines, read_block, read_fit, resolve
from rlinf_async.hosts.rlinf.effects import effects
from rlinf_async.hosts.rlinf.exactness import exactness
from rlinf_async.hosts.rlinf.fit import Fit
from rlinf_async.hosts.rlinf.footprints import footprints, rows
from rlinf_async.hosts.rlinf.host import is_active
from rlinf_async.hosts.rlinf.keys import without_effect
from rlinf_async.hosts.rlinf.placement import Machines, world_sizes
from rlinf_async.hosts.rlinf.replacements import replacements
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.simulators import hold_one_environment, simulators_apart
from rlinf_async.hosts.rlinf.translation import ASYNC_PPO, translations

SECTIONS = ("cluster", "runner", "algorithm", "env", "rollout", "actor")
"""What every config of an RLinf run has."""

PROXIMAL = {
    "recomputed": "recomputed: a pass without gradients over every batch",
    "loglinear": "loglinear: interpolated, without that pass; train/proximal_error says how far it is off",
}


def explain(
    cfg: DictConfig, *, gpus: int | None = None, nodes: int | None = None, gpu_memory: float | None = None
) -> dict[str, Any]:
    """Plain data that `--json` prints, for a cluster of so many nodes with so many accelerators each.

    By default there are as many nodes as the config says, each like this machine.

    Raises:
        ValueError: the config cannot run, with the remedy.
    """
    missing = [section for section in SECTIONS if section not in cfg]
    if missing:
        raise ValueError(f"this is no config of an RLinf run: it lacks {', '.join(missing)}")
    cluster = machines(cfg, gpus=gpus, nodes=nodes)
    fitted = read_fit(cfg) if is_active(cfg) else Fit(asynchrony=AsyncConfig())
    asynchrony = fitted.asynchrony
    facts: dict[str, Any] = {
        "mode": asynchrony.mode,
        "levels": asynchrony.levels,
        "dropped": dict(fitted.dropped),
        "changes": [asdict(change) for change in fitted.changes],
        "classes": replacements() if asynchrony.active else {},
        "max_staleness": asynchrony.max_staleness,
        "correction": asynchrony.train.correction if asynchrony.off_policy else "none needed",
        **_correction(asynchrony),
        "deterministic": asynchrony.deterministic,
        "shards": None,
        "exactness": dict.fromkeys(asynchrony.levels, "off"),
        "cluster": {"nodes": cluster.nodes, "gpus_per_node": cluster.gpus, "assumed": not cluster.named},
        "placement": OmegaConf.to_container(cfg.cluster.component_placement, resolve=True),
    }
    if not asynchrony.active:
        return facts
    settings = resolve(cfg, cluster=cluster)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    facts["exactness"] = exactness(plain, settings)
    return {
        **facts,
        **_shards(cfg, settings),
        **_batches(settings),
        "publication": _publication(settings),
        "memory": footprints(plain, settings, cluster, gpu_memory=gpu_memory),
        "translated": translations(plain, read_block(cfg)) if asynchrony.train.enabled else [],
        "remarks": [
            *_beyond(plain, cluster),
            *without_effect(plain),
            *effects(plain, settings, cluster),
            *_remarks(cfg, settings),
        ],
    }


def _beyond(cfg: Mapping[str, Any], cluster: Machines) -> Iterator[str]:
    """What the placement names that an assumed cluster has not."""
    try:
        world_sizes(cfg["cluster"], replace(cluster, named=True))
    except ValueError as error:
        yield f"{error}; RLinf would refuse it on such a cluster: --gpus and --nodes name yours"


def _correction(asynchrony: AsyncConfig) -> dict[str, Any]:
    train, corrects = asynchrony.train, asynchrony.correction != "none"
    bounded = corrects and not math.isinf(train.weight_bound)
    return {
        "max_weight": train.weight_bound if bounded else None,
        "proximal": train.proximal if corrects else None,
    }


def _shards(cfg: DictConfig, settings: Settings) -> dict[str, Any]:
    plan = settings.plan
    return {
        "shards": {
            "total": plan.shards,
            "per_env_worker": plan.shards_per_worker,
            "environments_each": plan.envs_per_shard,
            "group_size": plan.group_size,
            "why": _why_so_many(cfg, settings),
        },
        "ranks": {
            "env": plan.env_workers,
            "inference": plan.inference_ranks,
            "learner": plan.learner_ranks,
        },
        "inference_batch": {
            "at_most": settings.max_batch_size
            if settings.asynchrony.rollout.enabled
            else "everybody in flight",
            "max_wait_ms": settings.asynchrony.rollout.max_wait * 1000,
            "padded_to": list(settings.buckets) or "its own size",
        },
    }


def _why_so_many(cfg: DictConfig, settings: Settings) -> str:
    """Where the number of shards comes from."""
    rollout, simulator = settings.asynchrony.rollout, str(cfg.env.train.env_type)
    if hold_one_environment(cfg.env.train):
        return f"{simulator} simulates one environment at a time on the CPU: each is a shard"
    if not rollout.enabled:
        return "level 2 is off: rollout.pipeline_stage_num, and at least one for each inference rank"
    if rollout.shards != "auto":
        return "async.rollout.shards"
    if simulator in VECTORISED_SIMULATORS:
        return f"auto: {simulator} batches its environments on an accelerator and is not split"
    if int(cfg.rollout.get("pipeline_stage_num", 1)) > 1:
        return "auto: rollout.pipeline_stage_num is kept"
    if simulators_apart(cfg.env.train):
        return f"auto: every {simulator} simulator has a process of its own, so that none waits for another"
    return "auto: simulators share the env worker's process; one shard steps while another is answered"


def _publication(settings: Settings) -> str:
    """How new weights reach the inference ranks, and what that costs."""
    if settings.publishes_beside_training:
        return "published beside training: the learner copies them and goes on"
    return (
        f"published by RLinf's own transport ({settings.weight_syncer}): learner and inference stop for it; "
        "async.publication=beside, whatever the weight syncer, does not"
    )


def _batches(settings: Settings) -> dict[str, Any]:
    return {
        "batch": {
            "trajectories_per_step": settings.plan.trajectories_per_batch,
            "decisions_per_trajectory": settings.horizon,
            "samples_per_step": settings.samples_per_batch,
            "global_batch_size": settings.global_batch_size,
            "optimizer_steps_per_step": settings.optimizer_steps * settings.update_epoch,
            "micro_batch_size": settings.micro_batch_size,
            "micro_batches_per_optimizer_step": settings.micro_batches_per_step,
            "env_steps_per_step": settings.samples_per_batch * settings.steps_per_decision,
            "steps": settings.batches,
        }
    }


def _remarks(cfg: DictConfig, settings: Settings) -> list[str]:
    remarks = []
    if cfg.algorithm.loss_type == ASYNC_PPO and settings.asynchrony.recomputes:
        remarks.append(
            "RLinf's asynchronous PPO interpolates the proximal policy; here it is recomputed, which is "
            "exact; async.train.proximal=loglinear interpolates"
        )
    if cfg.algorithm.adv_type == "gae" and not cfg.algorithm.get("normalize_advantages", True):
        remarks.append("algorithm.normalize_advantages=false is ignored by RLinf's actor, and so it is here")
    if settings.asynchrony.deterministic:
        remarks.append(
            "async.deterministic: weights are published once all rollouts that need the ones before have "
            "ended, which is slower; on a GPU the kernels must be deterministic, too"
        )
    if settings.asynchrony.train.balance == "free":
        remarks.append(
            "async.train.balance=free: a batch is what comes first, so that fast environments and short "
            "episodes weigh more than in RLinf, in training and in the reported success; async/share tells "
            "how much, and async.train.balance=exact keeps their shares"
        )
    interpolates = settings.asynchrony.train.proximal == "loglinear"
    if settings.asynchrony.off_policy and (interpolates or settings.asynchrony.correction == "none"):
        remarks.append("values, and the advantages made of them, are the sampling policies', not recomputed")
    elif settings.asynchrony.off_policy and cfg.env.train.auto_reset:
        remarks.append("values that bootstrap truncated episodes are the sampling policy's, not recomputed")
    if settings.plan.inference_ranks > settings.plan.shards:
        remarks.append(
            f"{settings.plan.inference_ranks} inference ranks share {settings.plan.shards} shards and some "
            "will idle: raise async.rollout.shards"
        )
    return remarks


def show(facts: dict[str, Any], console: Console) -> None:
    """Print `explain`'s facts for a reader."""
    table = Table(show_header=False, title="What this config does", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    memory = rows(facts["memory"]) if "memory" in facts else ()
    for name, text in (*_level_rows(facts), *_class_rows(facts), *_size_rows(facts), *memory):
        table.add_row(name, escape(text))
    for remark in facts.get("remarks", []):
        table.add_row("note", escape(remark))
    console.print(table)


def _level_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    on = [name for name, enabled in facts["levels"].items() if enabled]
    yield "levels", ", ".join(on) or "none: RLinf's own workers and runner run"
    for name in on:
        yield f"  {name}", facts["exactness"][name]
    for name, why in facts["dropped"].items():
        yield f"  {name}", f"off: {why}"
    for change in facts["changes"]:
        yield "changed", f"{change['key']}={_plain(change['value'])}: {change['why']}"
    yield "max staleness", str(facts["max_staleness"])
    yield "correction", facts["correction"]
    if facts["proximal"]:
        yield "  proximal", PROXIMAL[facts["proximal"]]
    if facts["max_weight"]:
        yield "  weights", f"at most {facts['max_weight']:g}"
    if facts["deterministic"]:
        yield "deterministic", "every run with these settings gives the same weights, bit for bit"
    if "publication" in facts:
        yield "new weights", facts["publication"]
    for line in facts.get("translated", []):
        yield "RLinf's key", line


def _class_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Without their modules, of which `--json` tells: a reader wants to know whether a class is replaced."""
    for stock, ours in facts["classes"].items():
        module, _, name = ours.partition(":")
        yield "class", f"{stock.rsplit('.', 1)[1]} -> {name} ({module.partition('.')[0]})"


def _size_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "cluster", _machines(facts["cluster"])
    yield "placement", "; ".join(f"{names}: {_plain(where)}" for names, where in facts["placement"].items())
    if facts["shards"] is None:
        return
    ranks, shards, inference, batch = (facts[key] for key in ("ranks", "shards", "inference_batch", "batch"))
    yield "ranks", _plain(ranks)
    yield (
        "shards",
        f"{shards['total']}, {shards['per_env_worker']} per env worker; {shards['environments_each']} "
        f"environments each, in groups of {shards['group_size']}",
    )
    yield "  why", shards["why"]
    yield (
        "inference",
        f"batches of at most {inference['at_most']}, wait {inference['max_wait_ms']:g} ms, padded to "
        f"{inference['padded_to']}",
    )
    yield (
        "a step",
        f"{batch['trajectories_per_step']} trajectories x {batch['decisions_per_trajectory']} decisions = "
        f"{batch['samples_per_step']} samples, {batch['env_steps_per_step']} env steps",
    )
    yield (
        "  training",
        f"{batch['optimizer_steps_per_step']} optimizer steps of {batch['global_batch_size']} samples, each "
        f"in {batch['micro_batches_per_optimizer_step']} micro-batches of {batch['micro_batch_size']} a rank",
    )
    yield "steps", str(batch["steps"])


def _machines(cluster: Mapping[str, Any]) -> str:
    nodes, gpus = cluster["nodes"], cluster["gpus_per_node"]
    each = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "no GPU, where a rank is a node"
    whose = "; assumed like this machine, --gpus and --nodes name another" if cluster["assumed"] else ""
    return f"{nodes} node{'' if nodes == 1 else 's'} with {each}{whose}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
