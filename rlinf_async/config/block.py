"""The `async` block of a run, frozen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlinf_async.config.sections import (
    AdvancedConfig,
    RolloutConfig,
    SkipConfig,
    StreamerConfig,
    SurviveConfig,
    TrainConfig,
    Weighting,
)
from rlinf_async.core.types import Correction

BLOCK_KEY = "async"
"""The name of the block in a config."""
Mode = Literal["off", "lean", "train", "rollout", "streamer", "full"]
MODE_LEVELS: dict[str, tuple[bool, bool, bool]] = {
    "off": (False, False, False),
    "lean": (False, False, False),
    "train": (True, False, False),
    "rollout": (False, True, False),
    "streamer": (False, False, True),
    "full": (True, True, True),
}
"""The levels that each mode switches on: 1 (train), 2 (rollout) and 3 (streamer)."""
SKIPPING_MODES = ("lean", "full")
"""The modes that leave out every kind of work in `async.skip`."""

# In the order of the flags in `MODE_LEVELS`.
LEVEL_NAMES = ("train", "rollout", "streamer")
SKIP_KINDS = tuple(SkipConfig().kinds)
FLAGS_OF_BLOCK = {**dict.fromkeys(LEVEL_NAMES, ("enabled",)), "skip": SKIP_KINDS}
"""The keys that `true` or `false`, given instead of a block, sets."""
SCHEMAS: dict[str, type[Any]] = {
    "train": TrainConfig,
    "rollout": RolloutConfig,
    "streamer": StreamerConfig,
    "skip": SkipConfig,
    "survive": SurviveConfig,
    "advanced": AdvancedConfig,
}
"""The classes of the blocks in `async`."""


@dataclass(frozen=True, kw_only=True)
class AsyncConfig:
    """The three levels of a run, the work that it leaves out, and their limits."""

    mode: Mode = "off"
    train: TrainConfig = field(default_factory=TrainConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    streamer: StreamerConfig = field(default_factory=StreamerConfig)
    skip: SkipConfig = field(default_factory=SkipConfig)
    survive: SurviveConfig = field(default_factory=SurviveConfig)
    advanced: AdvancedConfig = field(default_factory=AdvancedConfig)
    deterministic: bool = False
    """Level 1 with a fixed lag: every action for a batch is made `max_staleness` versions before it."""

    def __post_init__(self) -> None:
        if self.deterministic and (not self.off_policy or self.rollout.enabled or self.streamer.enabled):
            raise ValueError(
                "async.deterministic=true fixes the lag of level 1, and needs it alone with a max_staleness "
                "of at least 1: levels 2 and 3 act on arrival times; use async.mode=train"
            )
        if self.deterministic and self.takes_tasks:
            raise ValueError(
                "async.advanced.balance=tasks gives each place in a batch to the shard that is first, "
                "which async.deterministic=true rules out; use async.advanced.balance=exact"
            )
        if self.off_policy and self.train.correction == "none" and not self.advanced.accept_bias:
            raise ValueError(
                f"async.train.correction=none with max_staleness={self.max_staleness} trains off-policy data "
                "without any correction; use async.train.correction=decoupled, or also set "
                "async.advanced.accept_bias=true"
            )

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> AsyncConfig:
        """Return the config of a block whose keys and values are valid; see `config.checked.checked_config`.

        A flag given explicitly beats the preset of `mode`; `true` or `false` instead of a level's block, or
        of `skip`, sets its flags.

        Raises:
            ValueError: settings of the block do not go together.
        """
        block = with_flags(block or {})
        mode: Any = block.get("mode", "off")
        mode = "off" if mode is False else mode  # YAML reads a bare `off` as False
        preset = dict(zip(LEVEL_NAMES, MODE_LEVELS[mode], strict=True))
        given = {name: block.get(name) or {} for name in SCHEMAS}
        usual = {name: {"enabled": enabled} for name, enabled in preset.items()}
        usual["skip"] = dict.fromkeys(SKIP_KINDS, mode in SKIPPING_MODES)
        parsed = {name: schema(**{**usual.get(name, {}), **given[name]}) for name, schema in SCHEMAS.items()}
        return cls(**{**block, **parsed, "mode": mode})

    def without(self, levels: Collection[str]) -> AsyncConfig:
        """Return a copy with `levels` off."""
        return replace(self, **{name: replace(getattr(self, name), enabled=False) for name in levels})

    @property
    def active(self) -> bool:
        """True if a level is on or work is left out; else the host runs its own stock workers."""
        return any(self.levels.values()) or any(self.skip.kinds.values())

    @property
    def max_staleness(self) -> int:
        """The bound in force: 0 while level 1 is off."""
        return self.train.max_staleness if self.train.enabled else 0

    @property
    def off_policy(self) -> bool:
        """True if samples may be older than the policy that trains on them."""
        return self.max_staleness > 0

    @property
    def takes_tasks(self) -> bool:
        """True if a free shard collects for the next place of a batch, with the tasks of that place.

        False while `balance` is `auto`: a host decides when it knows the environments.
        """
        return self.advanced.balance == "tasks"

    @property
    def correction(self) -> Correction:
        """The correction in force: `none` if every sample is on-policy."""
        return self.train.correction if self.off_policy else "none"

    @property
    def weighting(self) -> Weighting | None:
        """The treatment of off-policy samples, or None if every sample has weight 1."""
        if self.correction == "none":
            return None
        return Weighting(
            correction=self.correction,
            max_weight=self.advanced.weight_bound(self.correction),
            interpolates=self.advanced.proximal == "loglinear",
        )

    @property
    def recomputes(self) -> bool:
        """True if the policy that begins to train on samples first recomputes their log-probabilities."""
        return self.weighting is not None and not self.weighting.interpolates

    @property
    def measures_ratios(self) -> bool:
        """True if off-policy ratios are logged."""
        return self.off_policy and self.advanced.measures

    @property
    def levels(self) -> dict[str, bool]:
        return {
            "train": self.train.enabled,
            "rollout": self.rollout.enabled,
            "streamer": self.streamer.enabled,
        }


def with_flags(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block with `train: {enabled: true}` for `train: true`, and so for every block of flags."""
    return {
        name: dict.fromkeys(FLAGS_OF_BLOCK[name], content)
        if name in FLAGS_OF_BLOCK and isinstance(content, bool)
        else content
        for name, content in block.items()
    }


def words(levels: Mapping[str, bool]) -> str:
    """The levels, or kinds of work, that are on: `train + streamer`, or `off`."""
    return " + ".join(name for name, enabled in levels.items() if enabled) or "off"


def preset_levels(block: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the levels of a valid `async` block that only `mode: full` switches on: a run may drop them.

    A level's own flag, and the mode of a single level, request that level explicitly.
    """
    block = with_flags(block or {})
    if block.get("mode") != "full":
        return frozenset()
    return frozenset(level for level in LEVEL_NAMES if "enabled" not in (block.get(level) or {}))
