"""The table of RLinf's config keys: allowed values and effects, from `keys.toml`.

A key without a row is undecided: it is misspelt, or a newer RLinf has it. A test looks for such keys in
RLinf's example configs and in the sources of the classes that ours replace; `undecided` finds them in a
config. If RLinf's own workers or runners read such a key, our replacements would ignore it, so it is refused.
Otherwise a note names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup, shortened
from rlinf_async.hosts.judge.keys import Table, own_sections
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.judge.rows import Fate, is_off, read_rows
from rlinf_async.hosts.rlinf import reads
from rlinf_async.hosts.rlinf.models import TOKEN_MODELS
from rlinf_async.hosts.rlinf.sources import sources_of


def _scores_old_tokens(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return asynchrony.off_policy and lookup(cfg, "actor.model.model_type") in TOKEN_MODELS


def _shards_by_fsdp1(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    # RLinf's `validate_cfg` takes FSDP1 without this key, and FSDP2 does not read `sharding_strategy`.
    return lookup(cfg, "actor.fsdp_config.strategy") in (None, "fsdp")


ROWS, DEFAULTS = read_rows(
    Path(__file__).with_name("keys.toml"),
    {
        "cluster.profiling": {"serves": lambda block: not block or not block.get("enabled", True)},
        "runner.weight_sync_interval": {"null": 1},  # RLinf compares it with 0
        "rollout.sampling_params.top_k": {
            "serves": lambda top_k: top_k is None or top_k <= 0,
            "levels": ("train",),
            "where": _scores_old_tokens,
        },
        "actor.fsdp_config.sharding_strategy": {
            "serves": lambda strategy: strategy != "hybrid_shard",
            "where": _shards_by_fsdp1,
        },
    },
)
TABLE = Table(ROWS, default_of=DEFAULTS.get)
"""Every key of RLinf's config."""
TRANSLATIONS: Mapping[str, Mapping[str, str]] = {
    row.name: dict(each.partition("=")[::2] for each in row.why.split(", "))
    for row in TABLE.rows
    if row.fate == "translated"
}
"""{key of RLinf: {key that takes its place: the value of that key, or "" for the value of RLinf's key}}."""
KNOWN_SECTIONS = frozenset({*TABLE.sections, "defaults"})
"""The sections of RLinf's embodied runs, and ours; any other section is the user's own."""


def fate(key: str) -> Fate | None:
    """Return the fate of a dotted key; None if it is undecided."""
    row = TABLE.find(key)
    return row.fate if row else None


def undecided(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each undecided key of `cfg` (plain data) that is not refused."""
    others = {name: value for name, value in cfg.items() if name not in KNOWN_SECTIONS}
    own = {name: value for name, value in others.items() if not _is_ignored(name, value)}
    yield from own_sections(own, KNOWN_SECTIONS, framework="RLinf")
    for key, value in _unknown(cfg).items():
        if key.partition(".")[0] in KNOWN_SECTIONS and not _is_ignored(key, value):
            near = TABLE.nearest(key)
            hint = f"; did you mean {near}?" if near else ""
            yield (
                f"{key}={shortened(value)}: the effect of this key was not examined; RLinf's workers and "
                f"runners do not read it{hint}"
            )


def unserved_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each undecided key of `cfg` (plain data) that RLinf's workers or runners read."""
    for key, value in _unknown(cfg).items():
        if _is_ignored(key, value):
            yield Reason(
                f"{key}={shortened(value)} is read by RLinf's own workers or runner, and by none of those "
                "that take their places; remove it, or use async.mode=off",
                f"~{key}",
            )


def _unknown(cfg: Mapping[str, Any]) -> dict[str, Any]:
    brought = entry_points(group="rlinf_async.preparations").names
    return {
        key: value
        for key, value in TABLE.unknown(cfg).items()
        if key.partition(".")[0] not in brought and not (is_off(value) and key in filled_in())
    }


@cache
def filled_in() -> set[str]:
    """Return the keys that RLinf's `validate_cfg` writes into a config by itself, without the user."""
    sources = sources_of("rlinf")
    return set() if sources is None else sources.assigned("cfg", "config.py")


def _is_ignored(key: str, value: Any) -> bool:
    """Return True if RLinf's own workers would act on a key."""
    return not is_off(value) and is_read(key)


def is_read(key: str) -> bool:
    """Return True if RLinf's replaced classes read a dotted key, a block around it, or a key inside of it.

    A whole section of RLinf that is only passed on does not count as a read of its keys.
    """
    parts = tuple(key.split("."))
    telling = (chain for chain in reads.chains_here() if len(chain) > 1 or chain[0] not in KNOWN_SECTIONS)
    return any(all(a == b for a, b in zip(chain, parts, strict=False)) for chain in telling)
