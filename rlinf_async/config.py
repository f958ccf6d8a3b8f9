"""The `async` block of a run: parsed once, validated when built, frozen afterwards."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from rlinf_async.config_checks import (
    check_above_zero,
    check_block,
    check_choice,
    check_flag,
    check_keys,
    check_whole,
    is_finite,
)
from rlinf_async.core.types import Balance, Correction
from rlinf_async.survive_config import SurviveConfig

Mode = Literal["off", "train", "rollout", "streamer", "full"]
MODES: dict[str, tuple[bool, bool, bool]] = {
    "off": (False, False, False),
    "train": (True, False, False),
    "rollout": (False, True, False),
    "streamer": (False, False, True),
    "full": (True, True, True),
}
"""The preset of each mode: which of levels 1 (train), 2 (rollout) and 3 (streamer) are enabled."""

LEVELS = ("train", "rollout", "streamer")

MAX_WEIGHT = {"tis": 2.0, "mis": 2.0, "vtrace": 1.0}
"""Bounds of importance weights by correction: IMPALA's for V-trace, and what practice agrees on for TIS."""
COMPARED_BYTES = 2 * 10**9
"""Of trained weights on a learner rank, up to which `measure_ratios: auto` keeps copies of past ones."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Level 1: rollouts do not wait for the optimizer."""

    enabled: bool = False
    max_staleness: int = 1
    """Policy versions that a trained sample may be old, counted in global steps."""
    correction: Correction = "decoupled"
    """How a sample that an older policy has drawn is weighted; see `core.objectives.importance_weight`."""
    max_weight: float | Literal["auto"] = "auto"
    """The bound of that weight for tis, mis (auto: 2) and vtrace (auto: 1)."""
    proximal: Literal["recomputed", "loglinear", "first_visit"] = "recomputed"
    """The policy at the start of the update: recomputed in a pass without gradients, interpolated, or, for
    each sample, the one that trains it first."""
    scorer: Literal["learner", "inference"] = "learner"
    """Who recomputes the anchor: the learner, in a pass before it trains, or the inference ranks, which have
    the same weights, while it trains on what comes first. That is of use where they wait for the learner."""
    balance: Balance = "exact"
    """Whether environments contribute equally to every batch, each with its own task or with the task that is
    next (tasks), or whoever is first contributes more (free)."""
    measure_ratios: bool | Literal["auto"] = "auto"
    """Whether to log, per staleness and on a few samples, how far sampler, learner and policies differ.

    Costs a copy of the trained parameters to the CPU a step, and `max_staleness + 1` of them kept there;
    auto: where a learner rank trains at most 2 GB of them, and above that only what needs no copy.
    """
    accept_bias: bool = False
    """Said beside `correction: none`, to train off-policy data as if it were on-policy."""

    def __post_init__(self) -> None:
        for flag in ("enabled", "accept_bias"):
            check_flag(f"async.train.{flag}", getattr(self, flag))
        if self.measure_ratios != "auto":
            check_flag("async.train.measure_ratios", self.measure_ratios)
        check_whole("async.train.max_staleness", self.max_staleness, least=0)
        check_choice("async.train.correction", self.correction, get_args(Correction))
        check_choice("async.train.balance", self.balance, get_args(Balance))
        check_choice("async.train.proximal", self.proximal, ("recomputed", "loglinear", "first_visit"))
        check_choice("async.train.scorer", self.scorer, ("learner", "inference"))
        check_above_zero("async.train.max_weight", self.max_weight, auto=True)
        if self.scorer == "inference" and self.proximal != "recomputed":
            raise ValueError(
                f"async.train.scorer=inference with proximal={self.proximal}: nothing is scored again; use "
                "proximal=recomputed, or scorer=learner"
            )
        if self.proximal != "recomputed" and self.correction == "vtrace":
            raise ValueError(
                f"async.train.proximal={self.proximal} has no ratios before the update, which "
                "correction=vtrace estimates advantages with; use proximal=recomputed"
            )
        if self.enabled and self.max_staleness and self.correction == "none" and not self.accept_bias:
            raise ValueError(
                f"async.train.correction=none with max_staleness={self.max_staleness} trains off-policy data "
                "without any correction; use correction=decoupled, or also set async.train.accept_bias=true"
            )

    @property
    def measures(self) -> bool:
        """Whether distances between sampler, learner and policies are looked at, as far as `auto` goes."""
        return self.measure_ratios is not False

    def compares_versions(self, trained_bytes: float) -> bool:
        """Whether that includes policies of earlier versions, where a learner rank trains so many bytes."""
        return self.measures and (self.measure_ratios != "auto" or trained_bytes <= COMPARED_BYTES)

    @property
    def weight_bound(self) -> float:
        """`max_weight` as a number: without `auto`, and infinite where the correction has no bound."""
        bound = self.max_weight if self.max_weight != "auto" else MAX_WEIGHT.get(self.correction)
        return math.inf if bound is None or self.correction == "decoupled" else bound


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Level 2: no environment shard waits for another."""

    enabled: bool = False
    shards: int | Literal["auto"] = "auto"
    """Environment shards per env worker."""
    max_batch_size: int | Literal["auto"] = "auto"
    """Samples (environments) in one forward pass at most."""
    max_wait_ms: float | Literal["auto"] = "auto"
    """How long the oldest request may wait for company; auto is 0: fire when an accelerator is idle."""
    pad: bool | Literal["auto"] = "auto"
    """Whether batches are padded to a few sizes; auto: if `rollout.enable_torch_compile` is on."""
    reset_ahead: bool = False
    """Whether each shard has a second set of simulators, reset for the next rollout while the first plays.

    Takes twice the simulators' memory, and cores for the resets.
    """

    def __post_init__(self) -> None:
        for flag in ("enabled", "reset_ahead"):
            check_flag(f"async.rollout.{flag}", getattr(self, flag))
        check_whole("async.rollout.shards", self.shards, least=1, or_else="auto")
        check_whole("async.rollout.max_batch_size", self.max_batch_size, least=1, or_else="auto")
        if self.pad != "auto":
            check_flag("async.rollout.pad", self.pad)
        wait = self.max_wait_ms
        if wait != "auto" and not (is_finite(wait) and wait >= 0):
            raise ValueError(
                f"async.rollout.max_wait_ms={wait!r} must be auto or a finite number of "
                "at least 0; nearest: 0"
            )
        if self.reset_ahead and not self.enabled:
            raise ValueError(
                "async.rollout.reset_ahead=true needs level 2: without it every shard waits for the slowest "
                "reset all the same; use async.rollout.enabled=true"
            )

    @property
    def max_wait(self) -> float:
        """`max_wait_ms` in seconds."""
        return 0.0 if self.max_wait_ms == "auto" else float(self.max_wait_ms) / 1000.0


@dataclass(frozen=True, kw_only=True)
class StreamerConfig:
    """Level 3: the learner accumulates micro-batches while the rest is still being collected."""

    enabled: bool = False
    micro_batch_size: int | Literal["auto"] = "auto"
    """Samples per learner rank in one forward and backward pass; auto is the host's own."""
    normalization: Literal["auto", "running", "deferred"] = "auto"
    """Advantages (GAE): by the batch before (streams), or by the whole batch (exact, waits for it).

    Streaming can hide the first update epoch only: auto is running with one epoch, deferred with more.
    """
    steps: Literal["spread", "arrival"] = "spread"
    """What several optimizer steps of a pass train on: each on a share of every piece, or on what came next.

    With spread only the first step accumulates while the rest is still being collected. With arrival all do,
    but tasks that are always first fill the first step alone, which has cost learning.
    """

    def __post_init__(self) -> None:
        check_flag("async.streamer.enabled", self.enabled)
        check_whole("async.streamer.micro_batch_size", self.micro_batch_size, least=1, or_else="auto")
        check_choice("async.streamer.normalization", self.normalization, ("auto", "running", "deferred"))
        check_choice("async.streamer.steps", self.steps, ("spread", "arrival"))

    def defers(self, update_epochs: int) -> bool:
        """Whether advantages that are normalised over a batch wait for it."""
        return update_epochs > 1 if self.normalization == "auto" else self.normalization == "deferred"


@dataclass(frozen=True, kw_only=True)
class AsyncConfig:
    """The three levels of a run and what they may do. Built by `from_mapping`."""

    mode: Mode = "off"
    train: TrainConfig = field(default_factory=TrainConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    streamer: StreamerConfig = field(default_factory=StreamerConfig)
    survive: SurviveConfig = field(default_factory=SurviveConfig)
    offload: Literal["auto", "keep"] = "auto"
    """Offloading of what levels let work at once: auto switches it off and says so, keep refuses to start."""
    publication: Literal["beside", "host"] = "beside"
    """New weights travel beside training, or by the host's own transport, for which both sides stop."""
    deterministic: bool = False
    """Level 1 with a fixed lag: every action for a batch is made `max_staleness` versions before it."""
    adapt: bool = False
    """Whether batch size, wait and a bound on staleness, up to `max_staleness`, follow what is measured."""
    trace: bool = True
    """Whether every process writes down what it does when, for `rlinf-async trace` and `report`."""
    stall_s: float = 120.0
    """When nothing at all has ended for so long, the run says who waits for what."""
    deadline_s: float = 7200.0
    """No wait between workers lasts longer. It is a last resort: a crash is noticed at once."""

    def __post_init__(self) -> None:
        for flag in ("deterministic", "adapt", "trace"):
            check_flag(f"async.{flag}", getattr(self, flag))
        check_choice("async.offload", self.offload, ("auto", "keep"))
        check_choice("async.publication", self.publication, ("beside", "host"))
        if self.deterministic and (not self.off_policy or self.rollout.enabled or self.streamer.enabled):
            raise ValueError(
                "async.deterministic=true fixes the lag of level 1, and needs it alone with a max_staleness "
                "of at least 1: levels 2 and 3 act on arrival times; use async.mode=train"
            )
        if self.deterministic and self.takes_any_place:
            raise ValueError(
                f"async.train.balance={self.train.balance} gives each place in a batch to whoever is first, "
                "which async.deterministic=true rules out; use async.train.balance=exact"
            )
        if self.rollout.reset_ahead and self.takes_tasks:
            raise ValueError(
                "async.rollout.reset_ahead=true resets simulators before it is known which tasks they are to "
                "play, which async.train.balance=tasks decides when a rollout begins; use "
                "async.train.balance=exact"
            )
        self._check_adapt()
        self._check_scorer()
        for name in ("stall_s", "deadline_s"):
            check_above_zero(f"async.{name}", getattr(self, name))

    def _check_adapt(self) -> None:
        if self.adapt and self.deterministic:
            raise ValueError(
                "async.adapt=true changes settings by what the run measures, which async.deterministic=true "
                "rules out; use one of the two"
            )
        if self.adapt and not self.rollout.enabled and self.max_staleness < 2:
            raise ValueError(
                "async.adapt=true has nothing to change: level 2 is off, and a max_staleness of "
                f"{self.max_staleness} leaves no bound to choose; use async.rollout.enabled=true or "
                "async.train.max_staleness=2"
            )

    def _check_scorer(self) -> None:
        if self.train.scorer == "learner" or not self.off_policy:
            return
        if not (self.rollout.enabled and self.streamer.enabled):
            raise ValueError(
                "async.train.scorer=inference has a batch scored piece by piece between other requests, "
                "which takes levels 2 and 3; use async.mode=full, or async.train.scorer=learner"
            )
        if self.publication == "host":
            raise ValueError(
                "async.train.scorer=inference waits for the weights that begin a batch to reach inference "
                "beside training, which async.publication=host does not; use async.publication=beside"
            )

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> AsyncConfig:
        """Parse an `async` block; an `enabled` flag given explicitly beats the preset of `mode`.

        Raises:
            ValueError: an unknown key, a wrong type or a value outside its limits; the message names
                the value, the limit and the nearest valid choice.
        """
        block = dict(block or {})
        check_keys("async", block, cls)
        mode: Any = block.get("mode", "off")
        mode = "off" if mode is False else mode  # YAML reads a bare `off` as False
        check_choice("async.mode", mode, list(MODES))
        preset = dict(zip(LEVELS, MODES[mode], strict=True))
        levels: dict[str, Any] = {}
        for name, level in (("train", TrainConfig), ("rollout", RolloutConfig), ("streamer", StreamerConfig)):
            content = check_block(f"async.{name}", block.get(name), level, first="enabled")
            levels[name] = level(**{"enabled": preset[name], **content})
        content = check_block("async.survive", block.get("survive"), SurviveConfig, first="env_restarts")
        survive = SurviveConfig(**content)
        own = {name: block[name] for name in block if name not in ("mode", "survive", *levels)}
        return cls(mode=mode, survive=survive, **own, **levels)

    def without(self, levels: Collection[str]) -> AsyncConfig:
        """The same with `levels` off."""
        return replace(self, **{name: replace(getattr(self, name), enabled=False) for name in levels})

    @property
    def active(self) -> bool:
        """Whether any level is on; if none is, the host runs its own stock workers."""
        return self.train.enabled or self.rollout.enabled or self.streamer.enabled

    @property
    def max_staleness(self) -> int:
        """The bound in force: 0 while level 1 is off."""
        return self.train.max_staleness if self.train.enabled else 0

    @property
    def initial_staleness(self) -> int:
        """The bound with which a run begins; with `adapt` it may grow up to `max_staleness`."""
        return min(1, self.max_staleness) if self.adapt else self.max_staleness

    @property
    def off_policy(self) -> bool:
        """Whether samples may be older than the policy that trains on them."""
        return self.max_staleness > 0

    @property
    def takes_any_place(self) -> bool:
        """Whether a shard collects for the next place of a batch, whosever it is."""
        return self.train.balance != "exact"

    @property
    def takes_tasks(self) -> bool:
        """Whether its environments take on the tasks of that place."""
        return self.train.balance == "tasks"

    @property
    def correction(self) -> Correction:
        """The correction in force: none where every sample is on-policy."""
        return self.train.correction if self.off_policy else "none"

    @property
    def recomputes(self) -> bool:
        """Whether samples are re-anchored at the policy that starts to train on them, before it does."""
        return self.correction != "none" and self.train.proximal == "recomputed"

    @property
    def measures_ratios(self) -> bool:
        """Whether off-policy ratios are logged."""
        return self.off_policy and self.train.measures

    @property
    def levels(self) -> dict[str, bool]:
        return {
            "train": self.train.enabled,
            "rollout": self.rollout.enabled,
            "streamer": self.streamer.enabled,
        }


def words(levels: Mapping[str, bool]) -> str:
    """The levels that are on: `train + streamer`, or `off`."""
    return " + ".join(name for name, enabled in levels.items() if enabled) or "off"


def preset_levels(block: Mapping[str, Any] | None) -> frozenset[str]:
    """Levels of a valid `async` block that only `mode: full` switches on, which a run may do without.

    Whoever gives a level's own flag, the mode of one level or `rollout.reset_ahead` asks for that level.
    """
    block = block or {}
    if block.get("mode") != "full":
        return frozenset()
    own = {level: block.get(level) or {} for level in LEVELS}
    return frozenset(
        level for level in LEVELS if "enabled" not in own[level] and not own[level].get("reset_ahead")
    )
