"""veRL's config, read into what a run needs and written back with every `auto` resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.config import AdvancedConfig, AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.async_block import BLOCK_KEY, plain, read_block, resolved_rollout
from rlinf_async.hosts.ended import counts_on
from rlinf_async.hosts.exactness import why_learner_scores
from rlinf_async.hosts.reasons import Change, Reason, RefusedError, reasons_of, refuse
from rlinf_async.hosts.simulators import max_batch_size
from rlinf_async.hosts.tasks import settled
from rlinf_async.hosts.verl.algorithms import normalizes, streams
from rlinf_async.hosts.verl.keys import TABLE
from rlinf_async.hosts.verl.left_out import left_out
from rlinf_async.hosts.verl.recognition import another_mode
from rlinf_async.hosts.verl.refusals import contradictions, not_added_up, refusals, too_few_places
from rlinf_async.hosts.verl.settings import (
    ACTOR_SECTION,
    MODEL_SECTION,
    VerlSettings,
    evaluation,
    group_size,
    horizon,
    make_plan,
    misfits,
    section,
    whole,
)
from rlinf_async.hosts.verl.values import unknown, wrong_types
from rlinf_async.hosts.workers.settings import ALL_LAYERS, Adapters


def read(config: Mapping[str, Any] | DictConfig, *, more_reasons: Sequence[Reason] = ()) -> VerlSettings:
    """Return the settings of a run of trainer mode `vla_async`.

    `more_reasons` against the run, found elsewhere, are told with those found here.

    Raises:
        RefusedError: settings that are not supported, and numbers that do not go together, all at once.
        ValueError: the `async` block is not valid.
    """
    if why := another_mode(config, needs_ours=True):
        raise ValueError(why)
    cfg = plain(config) if isinstance(config, DictConfig) else config
    # Alone and first: with something else in a block's place, the lookups below would fail on their own.
    refuse(TABLE.misshapen(cfg))
    asynchrony = AsyncConfig.from_mapping(read_block(cfg))
    wrong_values = [*TABLE.malformed(cfg), *wrong_types(cfg)]
    reasons = [*wrong_values, *refusals(cfg), *unknown(cfg), *more_reasons]
    # Told before anything is calculated: the arithmetic below takes the kinds of its numbers for granted.
    if wrong_values:
        refuse(reasons)
    try:
        # First: the checks below read `balance`, which says nothing while it is `auto`.
        asynchrony = settled(asynchrony, section(cfg, "train"))
        reasons += contradictions(cfg, asynchrony)
        settings = _settings(cfg, asynchrony)
        reasons += misfits(cfg, settings)
        reasons += not_added_up(cfg, settings)
        reasons += too_few_places(cfg, settings)
    except ValueError as error:
        # The arithmetic ends at its first bad number, and what was found before is told with it.
        raise RefusedError([*reasons, *reasons_of(error)]) from error
    refuse(reasons)
    return settings


def write_back(config: DictConfig, settings: VerlSettings) -> Sequence[Change]:
    """Write what was resolved where veRL's code, and the reader of the run directory, look for it.

    Returns:
        veRL's settings that have given way.
    """
    # As a tuple and before the config is written: afterwards no setting would be left to give way.
    changes = tuple(TABLE.changes(plain(config)))
    rollout, streamer = settings.asynchrony.rollout, settings.asynchrony.streamer
    block: dict[str, Any] = {"mode": settings.asynchrony.mode}
    if rollout.enabled:
        block |= resolved_rollout(settings)
    if streamer.enabled:
        block["streamer"] = {"micro_batch_size": settings.micro_batch_size}
    # veRL's config is a struct, which refuses keys that it has not.
    with open_dict(config):
        config[BLOCK_KEY] = OmegaConf.merge(config.get(BLOCK_KEY) or {}, block)
        OmegaConf.update(config, f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu", settings.micro_batch_size)
        # As veRL's own trainers do, whatever the config says.
        OmegaConf.update(config, f"{ACTOR_SECTION}.optim.total_training_steps", settings.batches)
        for change in changes:
            OmegaConf.update(config, change.key, change.value)
    return changes


def _filled_in(cfg: Mapping[str, Any], advanced: AdvancedConfig) -> AdvancedConfig:
    """Fill in by veRL's own keys, and by its estimator, what the block leaves to them."""
    if not streams(str(lookup(cfg, "algorithm.adv_estimator"))) and advanced.normalization == "auto":
        advanced = replace(advanced, normalization="deferred")
    if advanced.keep_checkpoints != "all":
        return advanced
    if lookup(cfg, "trainer.remove_previous_ckpt_in_save"):
        return replace(advanced, keep_checkpoints=1)
    return replace(advanced, keep_checkpoints=lookup(cfg, "trainer.max_actor_ckpt_to_keep") or "all")


def _adapters(model: Any) -> Adapters | None:
    """The adapters that veRL's `actor_rollout_ref.model` asks for."""
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
    micro_batch = asynchrony.streamer.micro_batch_size if asynchrony.streamer.enabled else "auto"
    micro = (
        whole(cfg, f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu")
        if micro_batch == "auto"
        else int(micro_batch)
    )
    estimator = str(lookup(cfg, "algorithm.adv_estimator"))
    why_learner = why_learner_scores(
        asynchrony,
        # veRL's engine casts to bf16 unless it is told; a policy without a precision is left as it is.
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
        max_batch_size=max_batch_size(asynchrony.rollout, plan, evaluation(cfg)),
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
        skips_ended=asynchrony.skip.ended and not any(counts_on(section(cfg, "train"))),
        left_out=left_out(cfg) if asynchrony.skip.masked else LeftOut(),
    )
