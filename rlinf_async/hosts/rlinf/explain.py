"""The explanation of a config, worked out without starting Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts import explanation
from rlinf_async.hosts.async_block import plain, read_block
from rlinf_async.hosts.footprints import rows as memory_rows
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster
from rlinf_async.hosts.kit.models import unbuildable
from rlinf_async.hosts.rlinf import entropy
from rlinf_async.hosts.rlinf.assertions import failing
from rlinf_async.hosts.rlinf.chance import scored_by
from rlinf_async.hosts.rlinf.config import checked, is_active, machines, read_fit, resolve
from rlinf_async.hosts.rlinf.effects import effects
from rlinf_async.hosts.rlinf.exactness import exactness
from rlinf_async.hosts.rlinf.fit import Fit
from rlinf_async.hosts.rlinf.footprints import footprints
from rlinf_async.hosts.rlinf.host import CONFIG_SECTIONS
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.placement import Machines, world_sizes
from rlinf_async.hosts.rlinf.presence import absent, misnamed
from rlinf_async.hosts.rlinf.replacements import replacements
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.hosts.rlinf.translation import ASYNC_PPO, translations
from rlinf_async.hosts.rlinf.undecided import read_by_others, undecided


def explain(cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
    """Return the plan of a run of `cfg` on `cluster`, as plain data that `--json` prints.

    Raises:
        ValueError: the config cannot run, with the remedy.
    """
    missing = [section for section in CONFIG_SECTIONS if section not in cfg]
    if missing:
        raise ValueError(f"this is no config of an RLinf run: it lacks {', '.join(missing)}")
    values = checked(cfg, complete=False)
    placed = machines(cfg, cluster)
    fitted = read_fit(cfg) if is_active(cfg) else Fit(asynchrony=AsyncConfig())
    asynchrony = fitted.asynchrony
    facts: dict[str, Any] = {
        **explanation.level_facts(asynchrony),
        "dropped": dict(fitted.dropped),
        "changes": [asdict(change) for change in fitted.changes],
        "classes": replacements() if asynchrony.active else {},
        "shards": None,
        "exactness": dict.fromkeys(asynchrony.levels, "off"),
        "cluster": {"nodes": placed.nodes, "gpus_per_node": placed.gpus, "assumed": not placed.named},
        "placement": plain(cfg.cluster.component_placement),
    }
    if not asynchrony.active:
        return facts
    unbuilt = unbuildable(values["actor"]["model"], key="actor.model")
    beside = [*misnamed(values), *failing(values), *read_by_others(values), *unbuilt]
    settings = resolve(cfg, cluster=placed, beside=beside)
    facts["exactness"] = exactness(values, settings)
    facts["scored"] = scored_by(values) if asynchrony.correction != "none" else ""
    return {
        **facts,
        **explanation.run_facts(settings, why=_why_so_many(cfg, settings)),
        "memory": footprints(values, settings, placed, gpu_memory=cluster.gpu_memory),
        "translated": translations(values, read_block(cfg)) if asynchrony.train.enabled else [],
        "remarks": [
            *_beyond(values, placed),
            *([] if placed.named else _absent(values)),
            *TABLE.without_effect(values),
            *undecided(values),
            *effects(values, settings, placed),
            *entropy.remarks(values),
            *_remarks(cfg, settings),
        ],
    }


def _absent(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons for which a run would be refused on this machine."""
    for reason in absent(cfg):
        yield f"a run would not begin on this machine: {reason.text}"


def _beyond(cfg: Mapping[str, Any], cluster: Machines) -> Iterator[str]:
    """Yield the placement's demands that an assumed cluster does not meet."""
    try:
        world_sizes(cfg["cluster"], replace(cluster, named=True))
    except ValueError as error:
        yield f"{error}; RLinf would refuse it on such a cluster: --gpus and --nodes name yours"


def _why_so_many(cfg: DictConfig, settings: RLinfSettings) -> str:
    """Return the reason for the number of shards."""
    return explanation.why_so_many(
        cfg.env.train,
        settings.asynchrony.rollout,
        stages=int(cfg.rollout.get("pipeline_stage_num", 1)),
        key="rollout.pipeline_stage_num",
    )


def _remarks(cfg: DictConfig, settings: RLinfSettings) -> list[str]:
    lines = []
    if cfg.algorithm.loss_type == ASYNC_PPO and settings.asynchrony.recomputes:
        lines.append(
            "RLinf's asynchronous PPO interpolates the proximal policy; here it is recomputed, which is "
            "exact; async.advanced.proximal=loglinear interpolates"
        )
    if cfg.algorithm.adv_type == "gae" and not cfg.algorithm.get("normalize_advantages", True):
        lines.append("algorithm.normalize_advantages=false is ignored by RLinf's actor, and so it is here")
    starts, compared = int(cfg.env.train.get("group_size") or 1), int(cfg.algorithm.get("group_size") or 1)
    if cfg.algorithm.adv_type == "grpo" and starts % compared:
        lines.append(
            f"algorithm.group_size={compared} compares environments that env.train.group_size={starts} has "
            f"begin differently; set env.train.group_size={compared} for groups of one start"
        )
    return [*lines, *explanation.remarks(settings, auto_reset=bool(cfg.env.train.auto_reset))]


def show(facts: Mapping[str, Any], console: Console) -> None:
    """Print `explain`'s facts for a reader."""
    memory = memory_rows(facts["memory"]) if "memory" in facts else ()
    lines = (*_level_rows(facts), *_class_rows(facts), *_place_rows(facts), *memory)
    explanation.show_rows(lines, facts.get("remarks", []), console)


def _level_rows(facts: Mapping[str, Any]) -> Iterator[explanation.Row]:
    yield from explanation.level_rows(facts, none="none: RLinf's own workers and runner run")
    for name, why in facts["dropped"].items():
        yield f"  {name}", f"off: {why}"
    yield from explanation.change_rows(facts)
    yield from explanation.correction_rows(facts)
    for line in facts.get("translated", []):
        yield "RLinf's key", line


def _class_rows(facts: Mapping[str, Any]) -> Iterator[explanation.Row]:
    """Without their modules, of which `--json` tells: a reader wants to know whether a class is replaced."""
    for stock, replacement in facts["classes"].items():
        module, _, name = replacement.partition(":")
        yield "class", f"{stock.rsplit('.', 1)[1]} -> {name} ({module.partition('.')[0]})"


def _place_rows(facts: Mapping[str, Any]) -> Iterator[explanation.Row]:
    yield "cluster", _machines(facts["cluster"])
    yield "placement", "; ".join(f"{names}: {_plain(where)}" for names, where in facts["placement"].items())
    if facts["shards"] is not None:
        yield from explanation.size_rows(facts)
        yield from explanation.listening_rows(facts)


def _machines(cluster: Mapping[str, Any]) -> str:
    nodes, gpus = cluster["nodes"], cluster["gpus_per_node"]
    each = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "no GPU, where a rank is a node"
    whose = "; assumed like this machine, --gpus and --nodes name another" if cluster["assumed"] else ""
    return f"{nodes} node{'' if nodes == 1 else 's'} with {each}{whose}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
