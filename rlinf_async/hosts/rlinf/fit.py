"""Fits an `async` block and RLinf's settings together, and tells which gives way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.config import LEVEL_NAMES, AsyncConfig, preset_levels
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.kit.keys import Key
from rlinf_async.hosts.reasons import Change, Reason
from rlinf_async.hosts.rlinf.offload import OFFLOAD_KEYS, overlap
from rlinf_async.hosts.rlinf.refusals import contradictions, refuse_other_algorithms, unsupported
from rlinf_async.hosts.tasks import settled


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of fitting a config.

    A level that only `mode: full` asks for gives way to a setting of RLinf's that it cannot serve; the
    setting is refused where the level was asked for by name, and where no level would remain.
    """

    asynchrony: AsyncConfig
    """With the levels that remain; all that were asked for, if there are `reasons`."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Levels that have given way, and why."""
    changes: tuple[Change, ...] = ()
    """RLinf's settings that give way to the levels."""
    reasons: tuple[Reason, ...] = ()
    """Why the config cannot run."""

    @property
    def notes(self) -> list[str]:
        """The settings that have given way, for a reader."""
        dropped = [f"async.{level} stays off: {why}" for level, why in self.dropped.items()]
        return [*dropped, *map(str, self.changes)]


def fit(cfg: Mapping[str, Any]) -> Fit:
    """The levels that `cfg`, a config as plain data, can have, and what has to change for them.

    Raises:
        ValueError: the `async` block is not valid, or the algorithm is another than PPO and GRPO.
    """
    asynchrony = AsyncConfig.from_mapping(cfg.get("async"))
    if not asynchrony.active:
        return Fit(asynchrony=asynchrony)
    refuse_other_algorithms(cfg)
    refusals = unsupported(cfg, asynchrony)
    stopped = {level for levels in refusals.values() for level in levels}
    dropped = stopped & preset_levels(cfg.get("async"))
    remaining = asynchrony.without(dropped)
    if not remaining.active:
        dropped, remaining = set(), asynchrony
    remaining = settled(remaining, lookup(cfg, "env.train") or {})
    refused = [refusal for refusal, levels in refusals.items() if not dropped.issuperset(levels)]
    changes = tuple(_changes(cfg, remaining))
    reasons = [
        *contradictions(cfg, remaining),
        *(_reason(cfg, refusal, refusals[refusal]) for refusal in refused),
    ]
    return Fit(
        asynchrony=asynchrony if reasons else remaining,
        dropped={level: _why(cfg, level, refusals) for level in LEVEL_NAMES if level in dropped},
        changes=changes,
        reasons=tuple(reasons),
    )


def _changes(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Change]:
    for key, why in OFFLOAD_KEYS.items():
        if overlap(asynchrony) and lookup(cfg, key):
            yield Change(key, False, why)


def _reason(cfg: Mapping[str, Any], refusal: Key, levels: tuple[str, ...]) -> Reason:
    return Reason(f"async.{levels[0]} {refusal.says(lookup(cfg, refusal.name))}", refusal.override)


def _why(cfg: Mapping[str, Any], level: str, refused: Mapping[Key, tuple[str, ...]]) -> str:
    stops = [refusal for refusal, levels in refused.items() if level in levels]
    return "; ".join(f"it {refusal.says(lookup(cfg, refusal.name))}" for refusal in stops)
