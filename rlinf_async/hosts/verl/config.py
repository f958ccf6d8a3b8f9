"""Reads a run's settings from veRL's config, and writes them back with every `auto` resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.config import AdvancedConfig, AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.async_block import BLOCK_KEY, plain, read_block, resolved_rollout
from rlinf_async.hosts.ended import why_later_steps_count
from rlinf_async.hosts.exactness import why_learner_scores
from rlinf_async.hosts.judge.reasons import Change, Reason, RefusedError, reasons_of, refuse
from rlinf_async.hosts.simulators import max_batch_size, shard_choices
from rlinf_async.hosts.tasks import settled, task_reasons
from rlinf_async.hosts.verl.algorithms import (
    COMPARING_ESTIMATORS,
    REFUSED_ESTIMATORS,
    VALUE_ESTIMATORS,
    normalizes,
    override_for,
    streams,
)
from rlinf_async.hosts.verl.keys import TABLE, class_reasons, filled_in, unknown_key_reasons, usual
from rlinf_async.hosts.verl.left_out import left_out
from rlinf_async.hosts.verl.placement import placement_reasons, starts_ray
from rlinf_async.hosts.verl.recognition import another_mode
from rlinf_async.hosts.verl.settings import (
    ACTOR_SECTION,
    MODEL_SECTION,
    VerlSettings,
    evaluates,
    evaluation,
    group_size,
    horizon,
    make_plan,
    process_count,
    section,
    size_reasons,
    whole,
)
from rlinf_async.hosts.workers.settings import ALL_LAYERS, Adapters


def read(config: Mapping[str, Any] | DictConfig, *, more_reasons: Sequence[Reason] = ()) -> VerlSettings:
    """Return the settings of a run of trainer mode `vla_async`.

    `more_reasons` are reasons from other checks, reported together with those found here.

    Raises:
        RefusedError: settings are not supported, or numbers do not fit together; has all reasons.
        ValueError: the `async` block is not valid.
    """
    if why := another_mode(config, needs_ours=True):
        raise ValueError(why)
    cfg = plain(config) if isinstance(config, DictConfig) else config
    # First: without the blocks, the lookups below would fail with other errors.
    refuse(TABLE.block_reasons(cfg))
    cfg = filled_in(cfg)
    asynchrony = AsyncConfig.from_mapping(read_block(cfg))
    wrong_values = [*TABLE.reasons(cfg, usual=usual(cfg)), *class_reasons(cfg)]
    reasons = [*wrong_values, *_refused_key_reasons(cfg), *unknown_key_reasons(cfg), *more_reasons]
    # Refused before anything is calculated: the arithmetic below relies on the kinds of its numbers.
    if wrong_values:
        refuse(reasons)
    try:
        # First: the checks below read `balance`, and need it resolved.
        asynchrony = settled(asynchrony, section(cfg, "train"))
        reasons += _setting_reasons(cfg, asynchrony)
        settings = _settings(cfg, asynchrony)
        reasons += size_reasons(cfg, settings)
        reasons += _streamed_loss_reasons(cfg, settings)
        reasons += _place_reasons(cfg, settings)
    except ValueError as error:
        # The arithmetic raises at its first bad number; earlier reasons are reported with it.
        raise RefusedError([*reasons, *reasons_of(error)]) from error
    refuse(reasons)
    return settings


def write_back(config: DictConfig, settings: VerlSettings) -> Sequence[Change]:
    """Write the resolved settings into `config`, for veRL's code and for readers of the run directory.

    Returns:
        The changes of veRL's settings.
    """
    # As a tuple and before the config is written: afterwards the settings have their new values.
    changes = tuple(TABLE.changes(plain(config)))
    rollout, streamer = settings.asynchrony.rollout, settings.asynchrony.streamer
    block: dict[str, Any] = {"mode": settings.asynchrony.mode}
    if rollout.enabled:
        block |= resolved_rollout(settings)
    if streamer.enabled:
        block["streamer"] = {"micro_batch_size": settings.micro_batch_size}
    # veRL's config is in struct mode, which refuses new keys.
    with open_dict(config):
        config[BLOCK_KEY] = OmegaConf.merge(config.get(BLOCK_KEY) or {}, block)
        OmegaConf.update(config, f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu", settings.micro_batch_size)
        # As veRL's own trainers do, whatever the config says.
        OmegaConf.update(config, f"{ACTOR_SECTION}.optim.total_training_steps", settings.batches)
        for change in changes:
            OmegaConf.update(config, change.key, change.value)
    return changes


def _filled_in(cfg: Mapping[str, Any], advanced: AdvancedConfig) -> AdvancedConfig:
    """Fill in the keys that the block leaves open, from veRL's own keys and its estimator."""
    if not streams(str(lookup(cfg, "algorithm.adv_estimator"))) and advanced.normalization == "auto":
        advanced = replace(advanced, normalization="deferred")
    if advanced.keep_checkpoints != "all":
        return advanced
    if lookup(cfg, "trainer.remove_previous_ckpt_in_save"):
        return replace(advanced, keep_checkpoints=1)
    return replace(advanced, keep_checkpoints=lookup(cfg, "trainer.max_actor_ckpt_to_keep") or "all")


def _adapters(model: Any) -> Adapters | None:
    """Return the adapters that veRL's `actor_rollout_ref.model` asks for."""
    model = model or {}
    if not model.get("lora_rank"):
        return None
    return Adapters(
        rank=model["lora_rank"],
        # veRL's default.
        alpha=model.get("lora_alpha") or 16,
        targets=model.get("target_modules") or ALL_LAYERS,
        excluded=model.get("exclude_modules"),
    )


def _settings(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> VerlSettings:
    asynchrony = replace(asynchrony, advanced=_filled_in(cfg, asynchrony.advanced))
    plan = make_plan(cfg, asynchrony)
    decisions = horizon(cfg, "train")
    most = max_batch_size(asynchrony.rollout, plan, evaluation(cfg))
    micro_batch = asynchrony.streamer.micro_batch_size if asynchrony.streamer.enabled else "auto"
    micro = (
        whole(cfg, f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu")
        if micro_batch == "auto"
        else int(micro_batch)
    )
    estimator = str(lookup(cfg, "algorithm.adv_estimator"))
    why_learner = why_learner_scores(
        asynchrony,
        # veRL's engine casts to bf16 by default; a policy without a precision keeps its own types.
        learner=lookup(cfg, f"{ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype") or "bf16",
        inference=lookup(cfg, "vla.model.precision") or "fp32",
    )
    return VerlSettings(
        asynchrony=asynchrony,
        plan=plan,
        horizon=decisions,
        steps_per_decision=whole(cfg, "vla.model.num_action_chunks"),
        action_dim=whole(cfg, "vla.model.action_dim"),
        ratio_level=lookup(cfg, "vla.ratio_level") or "chunk",
        batches=whole(cfg, "trainer.total_training_steps"),
        # veRL's mini-batch counts prompts, which its trainer multiplies by `rollout.n`; each trajectory is
        # `decisions` samples.
        global_batch_size=whole(cfg, f"{ACTOR_SECTION}.ppo_mini_batch_size") * group_size(cfg) * decisions,
        micro_batch_size=micro,
        update_epoch=whole(cfg, f"{ACTOR_SECTION}.ppo_epochs", default=1),
        max_batch_size=most,
        shard_choices=shard_choices(
            plan,
            section(cfg, "train"),
            asynchrony,
            stages=whole(cfg, "env.stages", default=1),
            evaluation=evaluation(cfg),
            most=most,
        ),
        estimator=estimator,
        normalizes=normalizes(estimator),
        gamma=float(lookup(cfg, "algorithm.gamma")),
        lam=float(lookup(cfg, "algorithm.lam")),
        norm_by_std=bool(lookup(cfg, "algorithm.norm_adv_by_std_in_grpo")),
        auto_reset=bool(section(cfg, "train")["auto_reset"]),
        value_clip=float(lookup(cfg, "critic.cliprange_value")),
        adapters=_adapters(lookup(cfg, MODEL_SECTION)),
        seed=int(lookup(cfg, f"{ACTOR_SECTION}.data_loader_seed") or 0),
        # veRL's -1 means never, as 0 does here.
        save_every=max(0, int(lookup(cfg, "trainer.save_freq") or 0)),
        learner_scores=why_learner,
        skips_ended=asynchrony.skip.ended and not any(why_later_steps_count(section(cfg, "train"))),
        left_out=left_out(cfg) if asynchrony.skip.masked else LeftOut(),
    )


def _refused_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for every key of a plain config that is not served."""
    for key in TABLE.refused:
        if not key.allows(value := lookup(cfg, key.name)):
            yield key.refusal("trainer_mode vla_async", value)


def _setting_reasons(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for settings of a plain config that do not go together."""
    yield from _estimator_reasons(cfg, asynchrony)
    yield from _other_reasons(cfg, asynchrony)
    yield from _checkpoint_reasons(cfg)
    yield from placement_reasons(cfg)


def _streamed_loss_reasons(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
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


def _place_reasons(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """Yield a reason if a run on one node starts a Ray cluster with fewer CPUs than processes."""
    key = "ray_kwargs.ray_init.num_cpus"
    places, processes = lookup(cfg, key), process_count(settings.plan)
    if places is not None and places < processes and starts_ray(cfg):
        yield Reason(
            f"{key}={places} has no place for each of {processes} processes: learner ranks, env workers and "
            f"inference ranks; set {key}={processes}, which places processes and may be more than there are "
            "cores",
            f"{key}={processes}",
        )


def _checkpoint_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if a run would load parts of a checkpoint that its checkpoints do not have."""
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


def _estimator_reasons(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
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


def _other_reasons(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
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
    if asynchrony.advanced.shared_group_scene:
        yield Reason(
            "async.advanced.shared_group_scene=true is not served under veRL: only RLinf's LIBERO draws "
            "scenes beside initial states; use async.advanced.shared_group_scene=false",
            "async.advanced.shared_group_scene=false",
        )
    yield from task_reasons(section(cfg, "train"), asynchrony)
