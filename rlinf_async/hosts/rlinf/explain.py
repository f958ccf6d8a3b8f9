"""The explanation of a config, computed without starting Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from rlinf_async.config import LEVEL_NAMES, AsyncConfig
from rlinf_async.core.config_keys import dotted, nearest_key, shortened
from rlinf_async.core.sharding import splitting
from rlinf_async.hosts import explanation
from rlinf_async.hosts.async_block import plain, read_block, unused_settings
from rlinf_async.hosts.footprints import rows as memory_rows
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster
from rlinf_async.hosts.remarks import own_sections
from rlinf_async.hosts.remarks import remarks as run_remarks
from rlinf_async.hosts.rlinf import left_out, nft
from rlinf_async.hosts.rlinf.checkpoints import AUTO_RESUME, resume_step
from rlinf_async.hosts.rlinf.config import asks_for_levels, is_active, machines, read_fit, resolve
from rlinf_async.hosts.rlinf.dead_work import dead_work
from rlinf_async.hosts.rlinf.distillation import WHOLE_BATCH, lag_remarks
from rlinf_async.hosts.rlinf.exactness import bonus_remarks, exactness, starts_of_their_own
from rlinf_async.hosts.rlinf.footprints import footprints, teacher_remark
from rlinf_async.hosts.rlinf.gpu_shares import share_facts, share_remarks, share_rows
from rlinf_async.hosts.rlinf.host import CONFIG_SECTIONS, check_task
from rlinf_async.hosts.rlinf.keys import KNOWN_SECTIONS, TABLE, is_ignored, unknown
from rlinf_async.hosts.rlinf.losses import ASYNC_PPO
from rlinf_async.hosts.rlinf.models import UNTRAINED_CRITICS, scored_by
from rlinf_async.hosts.rlinf.placement import Machines, occupancy, world_sizes
from rlinf_async.hosts.rlinf.presence import checked, config_reasons, presence_reasons
from rlinf_async.hosts.rlinf.reasons import Fit
from rlinf_async.hosts.rlinf.replacements import replacements
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.settings import overlap
from rlinf_async.hosts.rlinf.strange_keys import strange_keys
from rlinf_async.hosts.rlinf.translation import overruled, translations
from rlinf_async.hosts.rlinf.view import RLinfView

COMPONENT_WORDS = {"actor": "learner", "rollout": "inference", "env": "environments"}
"""RLinf's components, in the words of a reader."""


def explain(cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
    """Return the plan of a run of `cfg` on `cluster`, as plain data that `--json` prints.

    Raises:
        ValueError: the config cannot run, with the remedy.
    """
    missing = [section for section in CONFIG_SECTIONS if section not in cfg]
    if missing:
        raise ValueError(
            f"this is no config of an RLinf run that trains: it lacks {', '.join(missing)}; RLinf's own "
            "collect_real_data.py runs the configs that collect data"
        )
    values = checked(cfg, complete=False)
    hardware = machines(cfg, cluster)
    fitting = read_fit(cfg) if is_active(cfg) else Fit(asynchrony=AsyncConfig())
    asynchrony = fitting.asynchrony
    facts: dict[str, Any] = {
        **explanation.level_facts(asynchrony),
        "dropped": dict(fitting.dropped),
        "changes": [asdict(change) for change in fitting.changes],
        "classes": replacements(cfg.algorithm.get("loss_type")) if asynchrony.active else {},
        "shards": None,
        "exactness": dict.fromkeys(asynchrony.levels, "off"),
        "cluster": {"nodes": hardware.nodes, "gpus_per_node": hardware.gpus, "assumed": not hardware.named},
        "placement": plain(cfg.cluster.component_placement),
    }
    if not asynchrony.active:
        return {**facts, "remarks": list(_without_levels(cfg))}
    check_task(cfg)
    # Packages and files that are missing here are remarks below: the run may be one on other machines.
    beside = config_reasons(values, active=True, here=False)
    settings, view = resolve(cfg, cluster=hardware, beside=beside), RLinfView.of(values)
    facts["exactness"] = exactness(view, settings)
    if asynchrony.off_policy and not settings.has_ratio:
        facts["correction"] = nft.NO_RATIO
    facts["dead_work"] = dead_work(view, settings)
    facts["scored"] = scored_by(values) if asynchrony.correction != "none" else ""
    memory = footprints(values, settings, hardware, gpu_memory=cluster.gpu_memory)
    return {
        **facts,
        **explanation.run_facts(
            settings,
            section=cfg.env.train,
            stages=int(cfg.rollout.get("pipeline_stage_num", 1)),
            key="rollout.pipeline_stage_num",
        ),
        "memory": memory,
        "gpu_shares": share_facts(values, settings, hardware, total=memory["gpu_bytes"]),
        "translated": list(translations(values, read_block(cfg))) if asynchrony.train.enabled else [],
        "remarks": [
            *_beyond(values, hardware),
            *([] if hardware.named else _absent(view)),
            *remarks(cfg, settings, hardware),
        ],
    }


def _without_levels(cfg: DictConfig) -> Iterator[str]:
    """Yield remarks on a config of a run without a level, which RLinf's own scripts may run as well."""
    block = read_block(cfg)
    yield from unused_settings(block, dict.fromkeys(LEVEL_NAMES, False))
    if asks_for_levels(cfg):
        yield "the async block has no effect: runner.only_eval=true evaluates a policy, and trains none"
    try:
        check_task(cfg)
    except ValueError as error:
        yield str(error)


def remarks(cfg: DictConfig, settings: RLinfSettings, hardware: Machines) -> Iterator[str]:
    """Yield remarks on a config that can run; a run prints them, too."""
    values = plain(cfg)
    view = RLinfView.of(values)
    yield from TABLE.without_effect(dotted(values).items())
    yield from undecided(values)
    yield from strange_keys(values, unresolved=OmegaConf.to_container(cfg))
    yield from overruled(values)
    yield from unused_settings(read_block(cfg), settings.asynchrony.levels)
    yield from effects(values, settings, hardware)
    yield from share_remarks(values, settings, hardware)
    yield from bonus_remarks(view)
    yield from starts_of_their_own(values, settings.asynchrony)
    if not settings.has_ratio:
        yield from nft.remarks(values, settings)
    if settings.asynchrony.skip.masked:
        yield from left_out.remarks(view)
    yield from _remarks(cfg, settings)


def _absent(view: RLinfView) -> Iterator[str]:
    """Yield the reasons why this machine would refuse a run."""
    for reason in presence_reasons(view):
        yield f"a run would not begin on this machine: {reason.text}"
    if (folder := view.resume_dir) != AUTO_RESUME:
        try:
            resume_step(folder, digests=False)
        except ValueError as error:
            yield f"a run would not begin on this machine: {error}"


def _beyond(cfg: Mapping[str, Any], cluster: Machines) -> Iterator[str]:
    """Yield the placement's demands that an assumed cluster does not meet."""
    try:
        world_sizes(cfg["cluster"], replace(cluster, named=True))
    except ValueError as error:
        yield f"{error}; RLinf would refuse it on such a cluster: --gpus and --nodes name yours"


def _remarks(cfg: DictConfig, settings: RLinfSettings) -> list[str]:
    lines = []
    if cfg.algorithm.loss_type == ASYNC_PPO and settings.asynchrony.recomputes:
        lines.append(
            "RLinf's asynchronous PPO interpolates the proximal policy; here it is recomputed, which is "
            "exact; async.advanced.proximal=loglinear interpolates"
        )
    if settings.distils:
        lines += [teacher_remark(plain(cfg)), *lag_remarks(settings.asynchrony)]
    if settings.has_critic and not cfg.algorithm.get("normalize_advantages", True):
        lines.append("algorithm.normalize_advantages=false is ignored by RLinf's actor, and so it is here")
    starts, compares = int(cfg.env.train.get("group_size") or 1), int(cfg.algorithm.get("group_size") or 1)
    if settings.compares_groups and starts % compares:
        lines.append(
            f"algorithm.group_size={compares} compares environments that env.train.group_size={starts} has "
            f"begin differently; set env.train.group_size={compares} for groups of one start"
        )
    if cfg.runner.get("per_worker_log"):
        lines.append(
            "runner.per_worker_log=true: what each worker prints is in worker_logs of the run's folder; a "
            "Ray cluster that the run starts has the dashboard, which knows the workers' files; metrics are "
            "logged once, not once more for every worker"
        )
    auto_reset, has_values = bool(cfg.env.train.auto_reset), settings.has_ratio
    return [*lines, *run_remarks(settings, auto_reset=auto_reset, has_values=has_values)]


def show(facts: Mapping[str, Any], console: Console) -> None:
    """Print `explain`'s facts for a reader."""
    memory = [*memory_rows(facts["memory"]), *share_rows(facts)] if "memory" in facts else []
    lines = (*_level_rows(facts), *_class_rows(facts), *_place_rows(facts), *memory)
    explanation.show_rows(lines, facts.get("remarks", []), console)


def _level_rows(facts: Mapping[str, Any]) -> Iterator[explanation.NamedText]:
    yield from explanation.level_rows(facts, none="none: RLinf's own workers and runner run")
    for name, why in facts["dropped"].items():
        yield f"  {name}", f"off: {why}"
    yield from explanation.change_rows(facts)
    yield from explanation.correction_rows(facts)
    for line in facts.get("translated", []):
        yield "RLinf's key", line


def _class_rows(facts: Mapping[str, Any]) -> Iterator[explanation.NamedText]:
    """Yield rows with the names of the classes that are used; `--json` has their modules, too."""
    for stock, replacement in facts["classes"].items():
        module, _, name = replacement.partition(":")
        yield "class", f"{stock.rsplit('.', 1)[1]} -> {name} ({module.partition('.')[0]})"


def _place_rows(facts: Mapping[str, Any]) -> Iterator[explanation.NamedText]:
    yield "cluster", _machines(facts["cluster"])
    yield "placement", "; ".join(f"{names}: {_plain(where)}" for names, where in facts["placement"].items())
    if facts["shards"] is not None:
        yield from explanation.size_rows(facts)
        yield from explanation.listening_rows(facts)


def _machines(cluster: Mapping[str, Any]) -> str:
    nodes, gpus = cluster["nodes"], cluster["gpus_per_node"]
    each = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "no GPU, where a rank is a node"
    note = "; assumed like this machine, --gpus and --nodes name another" if cluster["assumed"] else ""
    return f"{nodes} node{'' if nodes == 1 else 's'} with {each}{note}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def effects(cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines) -> Iterator[str]:
    """A remark for each level of a run, and for each setting, that does less than one might expect."""
    levels, plan = settings.asynchrony, settings.plan
    if levels.streamer.enabled and not settings.streams:
        yield _waiting(settings)
    train = cfg["env"]["train"]
    simulator, how = str(train["env_type"]), splitting(train)
    is_one_batch = how == "vectorised" and plan.shards_per_worker == 1
    if is_one_batch and levels.off_policy and settings.update_epoch > 1:
        yield _gain(simulator, settings)
    if how == "unknown" and plan.shards_per_worker > 1:
        yield (
            f"{plan.shards_per_worker} shards per env worker split {simulator}, which was not examined: if "
            "it batches its environments on an accelerator, the split costs time"
        )
    if levels.rollout.enabled and plan.shards == 1:
        yield "level 2 has one shard in all, and changes nothing"
    elif levels.rollout.enabled and plan.shards_per_worker == 1:
        yield "level 2 has one shard per env worker, so that only env workers do not wait for each other"
    model = cfg["actor"]["model"]
    if settings.has_critic and model.get("is_lora") and model["model_type"] in UNTRAINED_CRITICS:
        yield (
            f"with actor.model.is_lora RLinf does not train the critic of {model['model_type']}: advantages "
            "are estimated with values of the weights that a run begins with"
        )
    together = sharing_parts(cfg, machines)
    if len(together) > 1 and overlap(levels):
        yield (
            f"{', '.join(together[:-1])} and {together[-1]} are placed together and share the compute there: "
            "what the levels overlap fills gaps, and does not run at full speed twice"
        )
    if cfg["rollout"].get("enable_cuda_graph", False):
        yield (
            f"CUDA graphs are captured for batches of {settings.buckets[0]}, to which smaller ones are "
            "padded; workers without CUDA capture none"
        )


def _waiting(settings: RLinfSettings) -> str:
    """Return a remark on level 3 in a run with gradients that wait for the whole batch, with the remedy."""
    if not settings.has_ratio:
        return f"level 3 streams nothing: {nft.WAITS}"
    pieces, ahead = settings.plan.pieces_per_rank, settings.pieces_anchored_ahead
    what = "the anchor" if settings.distils else "the anchor and its values"
    if pieces == 1:
        return "level 3 does nothing: all samples of a learner rank for a step come in one piece"
    does = (
        f"level 3 streams {what}, for up to {ahead} of {pieces} pieces before the last "
        "has come, which is exact"
        if ahead
        else "level 3 streams nothing"
    )
    if settings.distils:
        return f"{does}: {WHOLE_BATCH}, and gradients wait for it"
    return (
        f"{does}: with normalisation deferred gradients wait for the whole batch; "
        "async.advanced.normalization=running streams them"
    )


def _gain(simulator: str, settings: RLinfSettings) -> str:
    """Return a remark on the gain from several update epochs, if a worker has a single simulator."""
    return (
        f"{simulator} is not split, and collects the next batch while the learner makes "
        f"{settings.update_epoch} update epochs of this one: a step takes the longer of the two, and no "
        "longer their sum"
    )


def sharing_parts(cfg: Mapping[str, Any], machines: Machines) -> list[str]:
    """Return those of learner, inference and environments that share an accelerator (or node) with
    another.
    """
    places = occupancy(cfg["cluster"], machines)
    return [
        word
        for name, word in COMPONENT_WORDS.items()
        if any(places[name].keys() & places[other].keys() for other in COMPONENT_WORDS if other != name)
    ]


def undecided(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each undecided key of `cfg` (plain data) that is not refused."""
    own = {name: value for name, value in cfg.items() if not is_ignored(name, value)}
    yield from own_sections(own, KNOWN_SECTIONS, framework="RLinf")
    for key, value in unknown(cfg).items():
        if key.partition(".")[0] in KNOWN_SECTIONS and not is_ignored(key, value):
            near = nearest_key(key, TABLE.names)
            hint = f"; did you mean {near}?" if near else ""
            yield (
                f"{key}={shortened(value)}: the effect of this key was not examined; RLinf's workers and "
                f"runners do not read it{hint}"
            )
