"""Settings of RLinf's config that do not go together, or that no level serves; and the levels that remain.

RLinf finds most of them in its workers, or by an assertion after it has started Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.config import LEVEL_NAMES, AsyncConfig, preset_levels
from rlinf_async.core.config_keys import lookup, shortened
from rlinf_async.core.sharding import nearest_multiple
from rlinf_async.hosts.judge.reasons import Change, Reason, override_reason, refuse, unknown_reason
from rlinf_async.hosts.judge.table import Key
from rlinf_async.hosts.rlinf.distillation import is_distilled, missing_parts, teacher_reasons
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.losses import (
    ADVANTAGE_TYPES,
    COMPARING_TYPES,
    CRITIC_LOSS,
    DISTILLATION,
    GRPO_TYPE,
    LOSSES_WITHOUT_RATIO,
    NFT_LOSS,
    ON_POLICY_LOSSES,
    OTHER_ALGORITHMS,
    RATIO_LEVELS,
    is_served,
)
from rlinf_async.hosts.rlinf.masks import MEAN_OVERRIDE, UNMASKING_KEYS, is_summed
from rlinf_async.hosts.rlinf.models import EVALUATED_MODELS, UNSERVED_MODELS, WITHOUT_ADAPTERS
from rlinf_async.hosts.rlinf.nft import correction_reasons, has_ratio, without_ratio
from rlinf_async.hosts.rlinf.scenes import scene_reasons
from rlinf_async.hosts.rlinf.settings import (
    HISTORY,
    asks_for_evaluation,
    last_step,
    overlap,
    scored_by_workers,
)
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.tasks import settled, task_reasons

SCRIPT, ASYNC_SCRIPT = "train_embodied_agent.py (EmbodiedRunner)", "train_async.py (AsyncEmbodiedRunner)"
"""RLinf's scripts in `examples/embodiment`, and the runners that they start."""
SCRIPTS_OF_LOSS = {
    "embodied_sac": (SCRIPT, ASYNC_SCRIPT),
    "embodied_dagger": (SCRIPT, ASYNC_SCRIPT),
    "offline_iql": ("train_offline_rl.py (OfflineRunner)",),
    "rlt_ac": (SCRIPT, ASYNC_SCRIPT),
    "rlt_td3": (SCRIPT,),
}
"""The scripts of RLinf that train with each of `OTHER_ALGORITHMS` (main a3816b59)."""
NO_ALGORITHM = Reason(
    "the config has no algorithm.loss_type, so that it trains nothing with RL: RLinf's own script runs it "
    "(collect_real_data.py where data are collected, eval_embodied_agent.py where a policy is evaluated); "
    "add algorithm.loss_type and algorithm.adv_type if it is to train, or use async.mode=off"
)
"""The reason for configs that collect data or evaluate."""
ANNEALING_SCHEDULES = ("cosine", "torch_cosine")
"""RLinf's values of `actor.optim.lr_scheduler` that need `total_training_steps`."""
WARM_UP_SCHEDULES = (None, "constant", "cosine")
"""Values that have a warm-up; without the key the schedule is constant."""


def refuse_other_algorithms(cfg: Mapping[str, Any]) -> None:
    """Check that `cfg` trains with a loss that is served; further checks do not apply to the keys of other
    algorithms.

    Raises:
        RefusedError: it does not.
    """
    loss, advantage = lookup(cfg, "algorithm.loss_type"), lookup(cfg, "algorithm.adv_type")
    if is_served(loss, advantage):
        return
    if is_distilled(cfg):
        if missing := list(missing_parts(cfg)):
            refuse(missing)
        return
    if (own := LOSSES_WITHOUT_RATIO.get(str(loss))) is not None:
        other = Reason(
            f"algorithm.adv_type={shortened(advantage)} does not go with algorithm.loss_type={loss}: served "
            f"are {' and '.join(own)}; use one of them, or async.mode=off"
        )
        refuse([other])
    if loss is None and advantage is None:
        refuse([NO_ALGORITHM])
    key, value = ("adv_type", advantage) if str(loss) in ON_POLICY_LOSSES else ("loss_type", loss)
    algorithm_name = OTHER_ALGORITHMS.get(str(value), "none of these")
    scripts = SCRIPTS_OF_LOSS.get(str(value), ())
    served = f"RLinf's own {' or '.join(scripts)} trains with it: " if scripts else ""
    other = Reason(
        f"algorithm.{key}={shortened(value)} is {algorithm_name}; rlinf-async makes PPO and GRPO "
        f"asynchronous (loss_type {', '.join(ON_POLICY_LOSSES)}, with adv_type "
        f"{' or '.join(ADVANTAGE_TYPES)}), NFT ({NFT_LOSS}) and on-policy distillation ({DISTILLATION}); "
        f"{served}use async.mode=off"
    )
    refuse([other])


def setting_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the settings of `cfg` (plain data) that do not go together, with or without a level."""
    yield from algorithm_reasons(cfg)
    yield from interval_reasons(cfg)
    yield from _schedule_reasons(cfg)


def algorithm_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons why an advantage, a loss or a level of ratios does not fit other settings."""
    advantage, size = lookup(cfg, "algorithm.adv_type"), lookup(cfg, "algorithm.group_size")
    if advantage in COMPARING_TYPES and (size or 1) < 2:
        yield Reason(
            f"algorithm.adv_type={advantage} compares the members of a group, and algorithm.group_size="
            f"{size}; use 2 or more, in env.train.group_size too",
            "algorithm.group_size=2",
        )
    # RLinf does not check this: its GRPO advantages have the shape of the mask, and fail without one.
    needs_mask = advantage == GRPO_TYPE and not lookup(cfg, "algorithm.filter_rewards")
    for key in UNMASKING_KEYS:
        if needs_mask and lookup(cfg, key):
            yield override_reason(
                f"algorithm.adv_type=grpo with {key}=true: RLinf's advantages need a mask of the steps after "
                "an episode's end, and there is none",
                f"{key}=false",
            )
    loss = lookup(cfg, "algorithm.loss_type")
    if ON_POLICY_LOSSES.get(loss) == CRITIC_LOSS and not lookup(cfg, "actor.model.add_value_head"):
        yield override_reason(f"algorithm.loss_type={loss} needs a critic", "actor.model.add_value_head=true")
    # RLinf does not check the name of a level, and would form other ratios.
    level = lookup(cfg, "algorithm.logprob_type")
    if level is not None and level not in (known := {*RATIO_LEVELS, *_levels_of_rlinf()}):
        levels = (*RATIO_LEVELS, *sorted(known.difference(RATIO_LEVELS)))
        yield unknown_reason("algorithm.logprob_type", level, levels, "a level of RLinf's")


def _levels_of_rlinf() -> set[str]:
    sources = sources_of("rlinf")
    return set() if sources is None else sources.compared_with("logprob_type", "algorithms/utils.py")


def interval_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons why RLinf would not evaluate, or would fail after the first step: its
    `check_progress` requires an evaluation at each save.
    """
    evaluate, save = lookup(cfg, "runner.val_check_interval"), lookup(cfg, "runner.save_interval")
    counts = isinstance(evaluate, int) and isinstance(save, int) and not lookup(cfg, "runner.only_eval")
    if counts and evaluate > 0 and save >= 0 and save % evaluate:
        near = nearest_multiple(save, evaluate)
        yield Reason(
            f"runner.save_interval={save} must be a multiple of runner.val_check_interval={evaluate}; "
            f"nearest: {near}",
            f"runner.save_interval={near}",
        )
    if asks_for_evaluation(cfg) and not isinstance(lookup(cfg, "env.eval"), Mapping):
        yield Reason(
            f"runner.val_check_interval={evaluate} asks for evaluation, and there is no block env.eval; add "
            "it, or set runner.val_check_interval=-1",
            "runner.val_check_interval=-1",
        )


def _schedule_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if RLinf's learning rate schedule would have 0 steps, and so jump from its start to its
    end.
    """
    optim = lookup(cfg, "actor.optim") or {}
    schedule, ratio = optim.get("lr_scheduler"), optim.get("lr_warmup_steps_ratio") or 0
    counts_by_ratio = ratio > 0 and (optim.get("lr_warmup_steps") or -1) < 0 and schedule in WARM_UP_SCHEDULES
    anneals = schedule in ANNEALING_SCHEDULES
    if optim.get("total_training_steps") is None and (anneals or counts_by_ratio):
        name = "lr_scheduler" if anneals else "lr_warmup_steps_ratio"
        steps = last_step(cfg["runner"])[1]
        yield Reason(
            f"actor.optim.{name}={optim[name]} needs actor.optim.total_training_steps, which the config "
            "lacks; RLinf's schedule advances once in a global step, after all of its optimizer steps, and "
            f"this run has {steps} global steps: set actor.optim.total_training_steps={steps}",
            f"++actor.optim.total_training_steps={steps}",
        )


def level_reasons(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for each setting that no level supports, or that does not fit the `async` block."""
    yield from _reward_reasons(cfg)
    yield from correction_reasons(cfg)
    if is_distilled(cfg):
        yield from teacher_reasons(cfg)
    if (model := lookup(cfg, "actor.model.model_type")) in EVALUATED_MODELS:
        yield override_reason(
            f"actor.model.model_type={model} can be evaluated by RLinf, and not trained",
            "runner.only_eval=true",
        )
    if why := UNSERVED_MODELS.get(str(model)):
        yield Reason(f"actor.model.model_type={model} is not served: {why}; use async.mode=off")
    if (level := lookup(cfg, "algorithm.logprob_type")) is not None and level not in RATIO_LEVELS:
        yield Reason(
            f"algorithm.logprob_type={shortened(level)} is not examined, so that corrections may be wrong "
            f"with it; served are {', '.join(RATIO_LEVELS)}; use async.mode=off"
        )
    yield from _adapter_reasons(lookup(cfg, "actor.model") or {})
    backend = lookup(cfg, "actor.training_backend")
    if backend not in (None, "fsdp"):
        yield Reason(f"actor.training_backend={backend!r} is not supported; use fsdp, or async.mode=off")
    yield from task_reasons(lookup(cfg, "env.train") or {}, asynchrony)
    yield from scene_reasons(cfg, asynchrony)
    yield from bonus_reasons(cfg, asynchrony)
    interval = lookup(cfg, "runner.val_check_interval") or -1
    if asynchrony.deterministic and interval > 0:
        yield Reason(
            f"async.deterministic does not support runner.val_check_interval={interval}: evaluation draws "
            "from the generator that samples rollouts; set it to -1 and evaluate checkpoints",
            "runner.val_check_interval=-1",
        )


def _reward_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons why a run cannot have the reward model in `cfg`."""
    if not scored_by_workers(cfg):
        return
    components = ",".join(lookup(cfg, "cluster.component_placement") or ())
    if "reward" not in [name.strip() for name in components.split(",")]:
        yield Reason(
            "reward.use_reward_model=True needs reward workers, and cluster.component_placement places no "
            "reward; add it, such as cluster.component_placement.reward: 0-0, or set "
            "reward.use_reward_model=false",
            "+cluster.component_placement.reward=0-0",
        )
    epochs = lookup(cfg, "env.train.rollout_epoch")
    assigns = lookup(cfg, "reward.reward_mode") == HISTORY and lookup(cfg, "reward.history_reward_assign")
    if assigns and lookup(cfg, "env.train.auto_reset") and (epochs or 1) > 1:
        yield Reason(
            "async does not support reward.history_reward_assign=True with env.train.auto_reset=True and "
            f"env.train.rollout_epoch={epochs}: a reward would belong to decisions of the rollout before, "
            "which has been handed over; set env.train.rollout_epoch=1, with as many times more of "
            "env.train.total_num_envs",
            "env.train.rollout_epoch=1",
        )


def _adapter_reasons(model: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if RLinf's `get_model` would fail in each worker, as a layer or a rank is missing."""
    if not model.get("is_lora") or model.get("lora_path") is not None:
        return
    if (name := model.get("model_type")) in WITHOUT_ADAPTERS:
        yield Reason(
            f"actor.model.is_lora=true does not go with actor.model.model_type={name}: it has no layer that "
            "RLinf's adapters are for; set it to false",
            "actor.model.is_lora=false",
        )
    elif model.get("lora_rank") is None:
        yield Reason(
            "actor.model.is_lora=true needs actor.model.lora_rank; set it, or actor.model.lora_path",
            "++actor.model.lora_rank=32",
        )


def bonus_reasons(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason if level 3's micro-batch size would change the weight of the entropy bonus."""
    size, own_size = lookup(cfg, "actor.micro_batch_size"), asynchrony.streamer.micro_batch_size
    if asynchrony.streamer.enabled and own_size not in ("auto", size) and is_summed(cfg):
        yield Reason(
            f"async.streamer.micro_batch_size={own_size} would change the weight of the entropy bonus, which "
            "is a sum over a micro-batch with algorithm.entropy_type=chunk_level and masked episodes; leave "
            f"it at actor.micro_batch_size={size}, or set {MEAN_OVERRIDE}",
            "async.streamer.micro_batch_size=auto",
        )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of fitting a config.

    A level that only `mode: full` asks for is dropped if a setting of RLinf conflicts with it. The setting is
    refused instead if the level was asked for by name, or if no level would remain.
    """

    asynchrony: AsyncConfig
    """The block with the levels that remain; with all requested levels, if there are `reasons`."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Dropped levels, with the reason for each."""
    changes: tuple[Change, ...] = ()
    """RLinf's settings that the levels change."""
    reasons: tuple[Reason, ...] = ()
    """Why the config cannot run."""

    @property
    def notes(self) -> list[str]:
        """The dropped levels and changed settings, as sentences."""
        dropped = [f"async.{level} stays off: {why}" for level, why in self.dropped.items()]
        return [*dropped, *map(str, self.changes)]


def fit(cfg: Mapping[str, Any]) -> Fit:
    """Return the levels that `cfg` (plain data) can have, and the changes that they need.

    Raises:
        ValueError: the `async` block is not valid, or the algorithm is not served.
    """
    asynchrony = AsyncConfig.from_mapping(cfg.get("async"))
    if not asynchrony.active:
        return Fit(asynchrony=asynchrony)
    refuse_other_algorithms(cfg)
    if not has_ratio(cfg):
        asynchrony = without_ratio(asynchrony)
    unsupported = _refused_keys(cfg, asynchrony)
    stopped_levels = {level for levels in unsupported.values() for level in levels}
    dropped = stopped_levels & preset_levels(cfg.get("async"))
    remaining = asynchrony.without(dropped)
    if not any(remaining.levels.values()):
        dropped, remaining = set(), asynchrony
    # After levels were dropped: `balance: auto` depends on whether level 2 remains.
    remaining = settled(remaining, lookup(cfg, "env.train") or {})
    refused_keys = [key for key, levels in unsupported.items() if not dropped.issuperset(levels)]
    changes = tuple(TABLE.changes(cfg)) if overlap(remaining) else ()
    reasons = [
        *level_reasons(cfg, remaining),
        *(key.refused_reason(f"async.{unsupported[key][0]}", lookup(cfg, key.name)) for key in refused_keys),
    ]
    return Fit(
        asynchrony=asynchrony if reasons else remaining,
        dropped={level: _why(cfg, level, unsupported) for level in LEVEL_NAMES if level in dropped},
        changes=changes,
        reasons=tuple(reasons),
    )


def _why(cfg: Mapping[str, Any], level: str, unsupported: Mapping[Key, tuple[str, ...]]) -> str:
    stops = [key for key, levels in unsupported.items() if level in levels]
    return "; ".join(f"it {key.refused_words(lookup(cfg, key.name))}" for key in stops)


def _refused_keys(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> dict[Key, tuple[str, ...]]:
    """Return settings of `cfg` (plain data) that levels which are on do not support, with those levels."""
    unsupported = {}
    on = asynchrony.levels
    for key in TABLE.refused:
        levels = tuple(level for level in key.levels if on[level])
        # A setting that no level supports is not supported by our workers without a level, either.
        if not any(on.values()) and set(key.levels) == set(LEVEL_NAMES):
            levels = ("skip",)
        if levels and key.where(cfg, asynchrony) and not key.allows(lookup(cfg, key.name)):
            unsupported[key] = levels
    return unsupported
