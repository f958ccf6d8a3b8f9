"""Settings of RLinf's config that do not go together, or that no level serves; and the levels that remain.

RLinf finds most of them in its workers, or by an assertion after it has started Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.config import LEVEL_NAMES, AsyncConfig, preset_levels
from rlinf_async.config.checked import checked_config
from rlinf_async.core.config_keys import did_you_mean, lookup, shortened
from rlinf_async.core.sharding import nearest_multiple
from rlinf_async.hosts.judge.reasons import Change, Reason, refuse, unknown_reason
from rlinf_async.hosts.judge.table import Key
from rlinf_async.hosts.rlinf import losses
from rlinf_async.hosts.rlinf.distillation import missing_parts, teacher_reasons
from rlinf_async.hosts.rlinf.exactness import scene_reasons
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.left_out import MEAN_OVERRIDE, is_summed
from rlinf_async.hosts.rlinf.models import UNSERVED_MODELS
from rlinf_async.hosts.rlinf.nft import correction_reasons, without_ratio
from rlinf_async.hosts.rlinf.settings import last_step, overlap
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.hosts.tasks import settled, task_reasons

ANNEALING_SCHEDULES = ("cosine", "torch_cosine")
"""RLinf's values of `actor.optim.lr_scheduler` that need `total_training_steps`."""
WARM_UP_SCHEDULES = (None, "constant", "cosine")
"""Values that have a warm-up; without the key the schedule is constant."""


def other_algorithm_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if a loss is not served; further checks do not apply to keys of other algorithms."""
    loss, advantage = view.loss, view.advantage
    own = losses.LOSSES_WITHOUT_RATIO.get(str(loss))
    if view.distils:
        yield from missing_parts(view)
    elif losses.is_served(loss, advantage):
        return
    elif own is not None:
        yield Reason(
            f"algorithm.adv_type={shortened(advantage)} does not go with algorithm.loss_type={loss}: served "
            f"are {' and '.join(own)}; use one of them, or async.mode=off"
        )
    elif loss is None and advantage is None:
        yield Reason(
            "the config has no algorithm.loss_type, so that it trains nothing with RL: RLinf's own script "
            "runs it (collect_real_data.py where data are collected, eval_embodied_agent.py where a policy "
            "is evaluated); add algorithm.loss_type and algorithm.adv_type if it is to train, or use "
            "async.mode=off"
        )
    else:
        name, value = ("adv_type", advantage) if str(loss) in losses.ON_POLICY_LOSSES else ("loss_type", loss)
        algorithm, *scripts = losses.OTHER_ALGORITHMS.get(str(value), ["none of these"])
        served = f"RLinf's own {' or '.join(scripts)} trains with it: " if scripts else ""
        shown = "null" if value is None else shortened(value)
        known = losses.ADVANTAGE_TYPES if name == "adv_type" else losses.ON_POLICY_LOSSES
        hint = "" if scripts or value is None else did_you_mean(value, known)
        yield Reason(
            f"algorithm.{name}={shown} is {algorithm}{hint}; rlinf-async makes PPO and GRPO "
            f"asynchronous (loss_type {', '.join(losses.ON_POLICY_LOSSES)}, with adv_type "
            f"{' or '.join(losses.ADVANTAGE_TYPES)}), NFT ({losses.NFT_LOSS}) and on-policy distillation "
            f"({losses.DISTILLATION}); {served}use async.mode=off"
        )


def setting_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield the settings that do not go together, with or without a level."""
    yield from TABLE.conflict_reasons(view.cfg)
    yield from ratio_reasons(view)
    yield from interval_reasons(view)
    yield from _schedule_reasons(view)


def ratio_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason for a level of ratios that RLinf does not check, so that it would form other ratios."""
    level, known = view.ratio_level, _levels_of_rlinf()
    if level not in (None, *losses.RATIO_LEVELS, *known):
        levels = (*losses.RATIO_LEVELS, *sorted(known.difference(losses.RATIO_LEVELS)))
        yield unknown_reason("algorithm.logprob_type", level, levels, "a level of RLinf's")


def _levels_of_rlinf() -> set[str]:
    return sources_of("rlinf").compared_with("logprob_type", "algorithms/utils.py")


def interval_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if RLinf would fail after a step: its `check_progress` evaluates at each save."""
    evaluate, save = view.val_check_interval, view.save_interval
    if evaluate > 0 and save >= 0 and save % evaluate and not view.only_eval:
        near = nearest_multiple(save, evaluate)
        yield Reason(
            f"runner.save_interval={save} must be a multiple of runner.val_check_interval={evaluate}; "
            f"nearest: {near}",
            f"runner.save_interval={near}",
        )


def _schedule_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if RLinf's learning rate schedule would have 0 steps, and so jump to its end."""
    optim = view.optim
    schedule, ratio = optim.get("lr_scheduler"), optim.get("lr_warmup_steps_ratio") or 0
    counts_by_ratio = ratio > 0 and (optim.get("lr_warmup_steps") or -1) < 0 and schedule in WARM_UP_SCHEDULES
    anneals = schedule in ANNEALING_SCHEDULES
    if optim.get("total_training_steps") is None and (anneals or counts_by_ratio):
        name = "lr_scheduler" if anneals else "lr_warmup_steps_ratio"
        steps = last_step(view.runner)[1]
        yield Reason(
            f"actor.optim.{name}={optim[name]} needs actor.optim.total_training_steps, which the config "
            "lacks; RLinf's schedule advances once in a global step, after all of its optimizer steps, and "
            f"this run has {steps} global steps: set actor.optim.total_training_steps={steps}",
            f"++actor.optim.total_training_steps={steps}",
        )


def level_reasons(view: RLinfView, asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for each setting that no level supports, or that does not fit the `async` block."""
    yield from _reward_reasons(view)
    yield from correction_reasons(view)
    if view.distils:
        yield from teacher_reasons(view)
    yield from TABLE.conflict_reasons(view.cfg, asynchrony)
    if why := UNSERVED_MODELS.get(str(view.model_type)):
        yield Reason(f"actor.model.model_type={view.model_type} is not served: {why}; use async.mode=off")
    if (level := view.ratio_level) not in (None, *losses.RATIO_LEVELS):
        yield Reason(
            f"algorithm.logprob_type={shortened(level)} is not examined, so that corrections may be wrong "
            f"with it; served are {', '.join(losses.RATIO_LEVELS)}; use async.mode=off"
        )
    if view.backend != "fsdp":
        yield Reason(f"actor.training_backend={view.backend!r} is not supported; use fsdp, or async.mode=off")
    yield from task_reasons(view.train, asynchrony)
    yield from scene_reasons(view.train, asynchrony)
    yield from bonus_reasons(view, asynchrony)


def _reward_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if the reward model of a run has no place."""
    placed = [name.strip() for name in ",".join(view.placement).split(",")]
    if view.scored_by_workers and "reward" not in placed:
        yield Reason(
            "reward.use_reward_model=True needs reward workers, and cluster.component_placement places no "
            "reward; add it, such as cluster.component_placement.reward: 0-0, or set "
            "reward.use_reward_model=false",
            "+cluster.component_placement.reward=0-0",
        )


def bonus_reasons(view: RLinfView, asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason if level 3's micro-batch size would change the weight of the entropy bonus."""
    size, own_size = view.micro_batch_size, asynchrony.streamer.micro_batch_size
    if asynchrony.streamer.enabled and own_size not in ("auto", size) and is_summed(view):
        yield Reason(
            f"async.streamer.micro_batch_size={own_size} would change the weight of the entropy bonus, which "
            "is a sum over a micro-batch with algorithm.entropy_type=chunk_level and masked episodes; leave "
            f"it at actor.micro_batch_size={size}, or set {MEAN_OVERRIDE}",
            "async.streamer.micro_batch_size=auto",
        )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The levels of a config: one that only `mode: full` asks for is dropped if a setting of RLinf conflicts
    with it. The setting is refused instead if the level was asked for by name, or if no level would remain.
    """

    asynchrony: AsyncConfig
    """With the levels that remain; with all requested levels, if there are `reasons`."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Dropped levels, with the reason for each."""
    changes: tuple[Change, ...] = ()
    reasons: tuple[Reason, ...] = ()

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
    asynchrony, view = checked_config(cfg.get("async")), RLinfView.of(cfg)
    if not asynchrony.active:
        return Fit(asynchrony=asynchrony)
    refuse(list(other_algorithm_reasons(view)))
    if not view.has_ratio:
        asynchrony = without_ratio(asynchrony)
    unsupported = _refused_keys(view, asynchrony)
    stopped_levels = {level for levels in unsupported.values() for level in levels}
    dropped = stopped_levels & preset_levels(cfg.get("async"))
    remaining = asynchrony.without(dropped)
    if not any(remaining.levels.values()):
        dropped, remaining = set(), asynchrony
    # After levels were dropped: `balance: auto` depends on whether level 2 remains.
    remaining = settled(remaining, view.train)
    refused_keys = [key for key, levels in unsupported.items() if not dropped.issuperset(levels)]
    reasons = [
        *level_reasons(view, remaining),
        *(key.refused_reason(f"async.{unsupported[key][0]}", lookup(cfg, key.name)) for key in refused_keys),
    ]
    return Fit(
        asynchrony=asynchrony if reasons else remaining,
        dropped={level: _why(cfg, level, unsupported) for level in LEVEL_NAMES if level in dropped},
        changes=tuple(TABLE.changes(cfg)) if overlap(remaining) else (),
        reasons=tuple(reasons),
    )


def _why(cfg: Mapping[str, Any], level: str, unsupported: Mapping[Key, tuple[str, ...]]) -> str:
    stops = [key for key, levels in unsupported.items() if level in levels]
    return "; ".join(f"it {key.refused_words(lookup(cfg, key.name))}" for key in stops)


def _refused_keys(view: RLinfView, asynchrony: AsyncConfig) -> dict[Key, tuple[str, ...]]:
    """Return settings that levels which are on do not support, with those levels."""
    unsupported, on = {}, asynchrony.levels
    for key in TABLE.refused:
        levels = tuple(level for level in key.levels if on[level])
        # A setting that no level supports is not supported by our workers without a level, either.
        if not any(on.values()) and set(key.levels) == set(LEVEL_NAMES):
            levels = ("skip",)
        if levels and key.where(view, asynchrony) and not key.allows(lookup(view.cfg, key.name)):
            unsupported[key] = levels
    return unsupported
