"""Reads a run's settings from veRL's config, and writes them back with every `auto` resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.config import BLOCK_KEY, AdvancedConfig, AsyncConfig
from rlinf_async.config.checked import checked_config
from rlinf_async.core.config_keys import dotted
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.async_block import MISSING_VALUE, plain, read_block, resolved_rollout
from rlinf_async.hosts.dead_work import why_later_steps_count
from rlinf_async.hosts.exactness import why_learner_scores
from rlinf_async.hosts.judge.reasons import Change, Reason, RefusedError, reasons_of, refuse
from rlinf_async.hosts.shard_choices import shard_choices
from rlinf_async.hosts.simulators import max_batch_size
from rlinf_async.hosts.tasks import settled
from rlinf_async.hosts.verl.algorithms import normalizes, streams
from rlinf_async.hosts.verl.defaults import usual
from rlinf_async.hosts.verl.left_out import left_out
from rlinf_async.hosts.verl.reasons import (
    TABLE,
    is_for_verl_to_judge,
    key_reasons,
    presence_reasons,
    run_reasons,
    setting_reasons,
    value_reasons,
)
from rlinf_async.hosts.verl.recognition import another_mode
from rlinf_async.hosts.verl.settings import VerlSettings, evaluation, horizon, make_plan, section
from rlinf_async.hosts.verl.trials import validate
from rlinf_async.hosts.verl.view import ACTOR_SECTION, VerlView
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
    asynchrony = checked_config(read_block(cfg))
    values = list(value_reasons(cfg))
    reasons = [*values, *key_reasons(cfg), *more_reasons]
    # Refused before anything is calculated: the arithmetic below relies on the kinds of its numbers.
    if values:
        refuse(reasons)
    view = VerlView.of(cfg)
    try:
        # First: the checks below read `balance`, and need it resolved.
        asynchrony = settled(asynchrony, section(view, "train"))
        reasons += setting_reasons(view, asynchrony)
        settings = _settings(view, asynchrony)
        reasons += run_reasons(view, settings)
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


def _filled_in(view: VerlView, advanced: AdvancedConfig) -> AdvancedConfig:
    """Fill in the keys that the block leaves open, from veRL's own keys and its estimator."""
    if not streams(view.estimator) and advanced.normalization == "auto":
        advanced = replace(advanced, normalization="deferred")
    if advanced.keep_checkpoints != "all":
        return advanced
    if view.removes_previous:
        return replace(advanced, keep_checkpoints=1)
    return replace(advanced, keep_checkpoints=view.kept_checkpoints or "all")


def _adapters(view: VerlView) -> Adapters | None:
    """Return the adapters that veRL's `actor_rollout_ref.model` asks for."""
    if not view.lora_rank:
        return None
    return Adapters(
        rank=view.lora_rank,
        alpha=view.lora_alpha,
        targets=view.lora_targets or ALL_LAYERS,
        excluded=view.lora_excluded,
    )


def _settings(view: VerlView, asynchrony: AsyncConfig) -> VerlSettings:
    asynchrony = replace(asynchrony, advanced=_filled_in(view, asynchrony.advanced))
    plan = make_plan(view, asynchrony)
    decisions = horizon(view, "train")
    most = max_batch_size(asynchrony.rollout, plan, evaluation(view))
    micro_batch = asynchrony.streamer.micro_batch_size if asynchrony.streamer.enabled else "auto"
    why_learner = why_learner_scores(
        asynchrony,
        learner=view.learner_precision,
        # A policy without a precision keeps its own types.
        inference=view.inference_precision or "fp32",
    )
    return VerlSettings(
        asynchrony=asynchrony,
        plan=plan,
        horizon=decisions,
        steps_per_decision=view.num_action_chunks,
        action_dim=view.action_dim,
        ratio_level=view.ratio_level,
        batches=view.steps,
        # veRL's mini-batch counts prompts, which its trainer multiplies by `rollout.n`; each trajectory is
        # `decisions` samples.
        global_batch_size=view.mini_batch_size * view.group_size * decisions,
        micro_batch_size=view.micro_batch_size if micro_batch == "auto" else int(micro_batch),
        update_epoch=view.update_epoch,
        max_batch_size=most,
        shard_choices=shard_choices(
            plan,
            section(view, "train"),
            asynchrony,
            stages=view.stages,
            evaluation=evaluation(view),
            most=most,
        ),
        estimator=view.estimator,
        normalizes=normalizes(view.estimator),
        gamma=float(view.gamma),
        lam=float(view.lam),
        norm_by_std=view.norm_by_std,
        auto_reset=bool(section(view, "train")["auto_reset"]),
        value_clip=float(view.value_clip),
        adapters=_adapters(view),
        seed=view.seed,
        # veRL's -1 means never, as 0 does here.
        save_every=max(0, view.save_interval),
        learner_scores=why_learner,
        skips_ended=asynchrony.skip.ended and not any(why_later_steps_count(section(view, "train"))),
        left_out=left_out(view) if asynchrony.skip.masked else LeftOut(),
    )


def filled_in(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return `cfg` (plain data) with nulls replaced by the values that they stand for, and with veRL's
    defaults for absent keys, except for keys that every run must set.
    """
    result = TABLE.without_nulls(cfg)
    for key, value in usual(cfg).items():
        row, (*sections, name) = TABLE.find(key), key.split(".")
        if value == MISSING_VALUE or (row is not None and row.required):
            continue
        place: Any = result
        for each in sections:
            place = place.setdefault(each, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.setdefault(name, value)
    return result


def fill_in(config: DictConfig) -> None:
    """Do the same in a config in place, as veRL's own code fails at absent keys and at some nulls."""
    before, after = dotted(plain(config)), dotted(filled_in(plain(config)))
    with open_dict(config):
        for key, value in after.items():
            if key not in before or (value is not None and before[key] is None):
                OmegaConf.update(config, key, value)


def runnable_settings(cfg: Mapping[str, Any]) -> VerlSettings:
    """Return the settings of a run of `cfg` (plain data) that can begin on this machine.

    Raises:
        RefusedError: the config cannot run; has all reasons.
        ValueError: as of `config.read`, and of veRL's own checks.
    """
    refuse(TABLE.block_reasons(cfg))
    cfg = filled_in(cfg)
    settings = read(cfg, more_reasons=list(presence_reasons(VerlView.of(cfg))))
    if is_for_verl_to_judge(cfg):
        validate(OmegaConf.create(dict(cfg)))
    return settings
