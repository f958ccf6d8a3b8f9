"""The `async` block of a run: parsed once, validated when built, frozen afterwards."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from rlinf_async.core.names import did_you_mean, nearest
from rlinf_async.core.types import Correction

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


def _choice(name: str, value: Any, choices: tuple[str, ...] | list[str]) -> None:
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}{hint}")


def _whole(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}; nearest: {least}")


def _auto_or_whole(name: str, value: Any, *, least: int) -> None:
    if value != "auto":
        _whole(name, value, least=least)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be true or false")


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
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """The policy at the start of the update: recomputed in a pass without gradients, or interpolated."""
    balance: Literal["exact", "free"] = "exact"
    """Whether every environment contributes equally to every batch, or whoever is first contributes more."""
    measure_ratios: bool = True
    """Whether to log, per staleness and on a few samples, how far sampler, learner and policies differ.

    Costs a copy of the trained parameters to the CPU a step, and `max_staleness + 1` of them kept there.
    """
    accept_bias: bool = False
    """Said beside `correction: none`, to train off-policy data as if it were on-policy."""

    def __post_init__(self) -> None:
        for flag in ("enabled", "measure_ratios", "accept_bias"):
            _flag(f"async.train.{flag}", getattr(self, flag))
        _whole("async.train.max_staleness", self.max_staleness, least=0)
        _choice("async.train.correction", self.correction, get_args(Correction))
        _choice("async.train.balance", self.balance, ("exact", "free"))
        _choice("async.train.proximal", self.proximal, ("recomputed", "loglinear"))
        if self.max_weight != "auto" and not (_finite(self.max_weight) and self.max_weight > 0):
            raise ValueError(
                f"async.train.max_weight={self.max_weight!r} must be auto or a finite number above 0; "
                "nearest: 1"
            )
        if self.proximal == "loglinear" and self.correction == "vtrace":
            raise ValueError(
                "async.train.proximal=loglinear has no ratios before the update, which correction=vtrace "
                "estimates advantages with; use proximal=recomputed"
            )
        if self.enabled and self.max_staleness and self.correction == "none" and not self.accept_bias:
            raise ValueError(
                f"async.train.correction=none with max_staleness={self.max_staleness} trains off-policy data "
                "without any correction; use correction=decoupled, or also set async.train.accept_bias=true"
            )

    @property
    def weight_bound(self) -> float:
        """`max_weight` as a number: without `auto`, and infinite where the correction has no bound."""
        asked = self.max_weight if self.max_weight != "auto" else MAX_WEIGHT.get(self.correction)
        return math.inf if asked is None or self.correction == "decoupled" else asked


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

    def __post_init__(self) -> None:
        _flag("async.rollout.enabled", self.enabled)
        _auto_or_whole("async.rollout.shards", self.shards, least=1)
        _auto_or_whole("async.rollout.max_batch_size", self.max_batch_size, least=1)
        if self.pad != "auto":
            _flag("async.rollout.pad", self.pad)
        wait = self.max_wait_ms
        if wait != "auto" and not (_finite(wait) and wait >= 0):
            raise ValueError(
                f"async.rollout.max_wait_ms={wait!r} must be auto or a finite number of "
                "at least 0; nearest: 0"
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

    def __post_init__(self) -> None:
        _flag("async.streamer.enabled", self.enabled)
        _auto_or_whole("async.streamer.micro_batch_size", self.micro_batch_size, least=1)
        _choice("async.streamer.normalization", self.normalization, ("auto", "running", "deferred"))

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
    offload: Literal["auto", "keep"] = "auto"
    """Offloading of what levels let work at once: auto switches it off and says so, keep refuses to start."""
    publication: Literal["beside", "host"] = "beside"
    """New weights travel beside training, or by the host's own transport, for which both sides stop."""
    deterministic: bool = False
    """Level 1 with a fixed lag: every action for a batch is made `max_staleness` versions before it."""
    trace: bool = True
    """Whether every process writes down what it does when, for `rlinf-async trace` and `report`."""
    stall_s: float = 120.0
    """When nothing at all has ended for so long, the run says who waits for what."""
    deadline_s: float = 7200.0
    """No wait between workers lasts longer. It is a last resort: a crash is noticed at once."""

    def __post_init__(self) -> None:
        for flag in ("deterministic", "trace"):
            _flag(f"async.{flag}", getattr(self, flag))
        _choice("async.offload", self.offload, ("auto", "keep"))
        _choice("async.publication", self.publication, ("beside", "host"))
        if self.deterministic and (not self.off_policy or self.rollout.enabled or self.streamer.enabled):
            raise ValueError(
                "async.deterministic=true fixes the lag of level 1, and needs it alone with a max_staleness "
                "of at least 1: levels 2 and 3 act on arrival times; use async.mode=train"
            )
        if self.deterministic and self.train.balance == "free":
            raise ValueError(
                "async.train.balance=free gives each batch to whoever is first, which "
                "async.deterministic=true rules out; use async.train.balance=exact"
            )
        for name in ("stall_s", "deadline_s"):
            seconds = getattr(self, name)
            if not (_finite(seconds) and seconds > 0):
                raise ValueError(f"async.{name}={seconds!r} must be a finite number above 0; nearest: 1")

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> AsyncConfig:
        """Parse an `async` block; an `enabled` flag given explicitly beats the preset of `mode`.

        Raises:
            ValueError: an unknown key, a wrong type or a value outside its limits; the message names
                the value, the limit and the nearest valid choice.
        """
        block = dict(block or {})
        _known_keys("async", block, cls)
        mode: Any = block.get("mode", "off")
        mode = "off" if mode is False else mode  # YAML reads a bare `off` as False
        _choice("async.mode", mode, list(MODES))
        preset = dict(zip(LEVELS, MODES[mode], strict=True))
        levels: dict[str, Any] = {}
        for name, level in (("train", TrainConfig), ("rollout", RolloutConfig), ("streamer", StreamerConfig)):
            given = block.get(name)
            if given is not None and not isinstance(given, Mapping):
                raise ValueError(
                    f"async.{name}={given!r} must be a block; nearest: async.{name}.enabled={given!r}"
                )
            given = dict(given or {})
            _known_keys(f"async.{name}", given, level)
            levels[name] = level(**{"enabled": preset[name], **given})
        own = {name: block[name] for name in block if name not in ("mode", *levels)}
        return cls(mode=mode, **own, **levels)

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
    def off_policy(self) -> bool:
        """Whether samples may be older than the policy that trains on them."""
        return self.max_staleness > 0

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
        return self.off_policy and self.train.measure_ratios

    @property
    def levels(self) -> dict[str, bool]:
        return {
            "train": self.train.enabled,
            "rollout": self.rollout.enabled,
            "streamer": self.streamer.enabled,
        }


def preset_levels(block: Mapping[str, Any] | None) -> frozenset[str]:
    """Levels of a valid `async` block that only `mode: full` switches on, which a run may do without.

    Whoever gives a level's own flag, or the mode of one level, asks for that level.
    """
    block = block or {}
    if block.get("mode") != "full":
        return frozenset()
    return frozenset(level for level in LEVELS if "enabled" not in (block.get(level) or {}))


def _known_keys(path: str, block: Mapping[str, Any], schema: type) -> None:
    valid = [item.name for item in fields(schema)]
    for key in block:
        if key not in valid:
            near = nearest(key, valid, cutoff=0.5)
            hint = f"did you mean {path}.{near}?" if near else f"valid keys: {', '.join(valid)}"
            raise ValueError(f"unknown key {path}.{key}; {hint}")
