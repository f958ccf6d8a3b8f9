"""Settings of veRL that our trainer cannot serve, named before Ray starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup, shortened
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.tasks import cannot_take_on
from rlinf_async.hosts.verl.algorithms import (
    COMPARING_ESTIMATORS,
    REFUSED_ESTIMATORS,
    VALUE_ESTIMATORS,
    override_for,
    streams,
)
from rlinf_async.hosts.verl.keys import REFUSED_KEYS
from rlinf_async.hosts.verl.placement import placement_reasons, starts_ray
from rlinf_async.hosts.verl.settings import (
    ACTOR_SECTION,
    VerlSettings,
    evaluates,
    group_size,
    process_count,
    section,
)


def refusals(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for every key of a plain config that is not served."""
    for key in REFUSED_KEYS:
        if not key.allows(value := lookup(cfg, key.name)):
            setting = f"{key.name}={shortened(value)}"
            yield Reason(f"trainer_mode vla_async does not support {setting}; {key.remedy}", key.override)


def contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for settings of a plain config that do not go together."""
    yield from _estimator_contradictions(cfg, asynchrony)
    yield from _other_contradictions(cfg, asynchrony)
    yield from _unsaved_parts(cfg)
    yield from placement_reasons(cfg)


def not_added_up(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """Yield a reason if the streamed micro-batches of a policy loss do not add up to an optimizer step."""
    name, mode = (
        str(lookup(cfg, f"{ACTOR_SECTION}.{key}")) for key in ("policy_loss.loss_mode", "loss_agg_mode")
    )
    override = override_for(name, mode) if settings.streams else ""
    if override:
        yield Reason(
            f"async.streamer does not support {ACTOR_SECTION}.policy_loss.loss_mode={name} with "
            f"loss_agg_mode={mode}: that loss is no mean over tokens, and its micro-batches do "
            f"not add up to one; use {override}",
            override,
        )


def too_few_places(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """Yield a reason if the Ray that a run on one node starts by itself has no place for each process."""
    key = "ray_kwargs.ray_init.num_cpus"
    places, processes = lookup(cfg, key), process_count(settings.plan)
    if places is not None and places < processes and starts_ray(cfg):
        yield Reason(
            f"{key}={places} has no place for each of {processes} processes: learner ranks, env workers and "
            f"inference ranks; set {key}={processes}, which places processes and may be more than there are "
            "cores",
            f"{key}={processes}",
        )


def _unsaved_parts(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if a run would go on from parts of a checkpoint that none has."""
    load, save = (
        _as_list(lookup(cfg, f"{ACTOR_SECTION}.checkpoint.{key}_contents")) for key in ("load", "save")
    )
    if missing := [name for name in load if name not in save]:
        yield Reason(
            f"{ACTOR_SECTION}.checkpoint.load_contents={load} asks for {', '.join(missing)}, which "
            f"save_contents={save} leaves out; use load_contents={save}",
            f"{ACTOR_SECTION}.checkpoint.load_contents=[{','.join(save)}]",
        )


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _estimator_contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    name = str(lookup(cfg, "algorithm.adv_estimator"))
    if name in COMPARING_ESTIMATORS and group_size(cfg) < 2:
        yield Reason(
            f"algorithm.adv_estimator={name} compares the members of a group, and actor_rollout_ref.rollout.n"
            "=1; use 2 or more, or adv_estimator=gae",
            "actor_rollout_ref.rollout.n=2",
        )
    if name in REFUSED_ESTIMATORS:
        yield Reason(
            f"trainer_mode vla_async does not support algorithm.adv_estimator={name}: "
            f"{REFUSED_ESTIMATORS[name]}; use "
            "gae or grpo",
            "algorithm.adv_estimator=grpo",
        )
    elif name in VALUE_ESTIMATORS and lookup(cfg, "vla.model.add_value_head") is False:
        yield Reason(
            f"algorithm.adv_estimator={name} needs values; set vla.model.add_value_head=true",
            "vla.model.add_value_head=true",
        )
    elif name not in VALUE_ESTIMATORS and section(cfg, "train")["auto_reset"]:
        yield Reason(
            f"algorithm.adv_estimator={name} compares whole episodes, which env.train.auto_reset=true cuts; "
            "use env.train.auto_reset=false",
            "env.train.auto_reset=false",
        )
    if asynchrony.streamer.enabled and asynchrony.advanced.normalization == "running" and not streams(name):
        yield Reason(
            f"async.advanced.normalization=running does not support algorithm.adv_estimator={name}, which "
            "looks at the whole batch; use deferred",
            "async.advanced.normalization=deferred",
        )


def _other_contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    if asynchrony.deterministic and evaluates(cfg):
        yield Reason(
            "async.deterministic does not support evaluation, which draws from the generator that samples "
            "rollouts; use trainer.test_freq=-1 and trainer.val_before_train=false",
            "trainer.test_freq=-1 trainer.val_before_train=false",
        )
    precision = lookup(cfg, f"{ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype")
    if asynchrony.streamer.enabled and str(precision) in ("fp16", "float16"):
        yield Reason(
            f"async.streamer does not support {ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype="
            f"{precision}: its scaler may skip a step; use bf16",
            f"{ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype=bf16",
        )
    if evaluates(cfg) and not isinstance(lookup(cfg, "env.eval"), Mapping):
        yield Reason(
            "trainer.test_freq or trainer.val_before_train asks for evaluation, and there is no env.eval; "
            "add that block, or use trainer.test_freq=-1 and trainer.val_before_train=false",
            "trainer.test_freq=-1 trainer.val_before_train=false",
        )
    yield from cannot_take_on(section(cfg, "train"), asynchrony)
