"""The table of RLinf's config keys: allowed values and effects, from `keys.toml`.

A key without a row is undecided: it is misspelt, or a newer RLinf has it. A test looks for such keys in
RLinf's example configs and in the sources of the classes that ours replace; `unknown` finds them in a
config. If RLinf's own workers or runners read such a key, our replacements would ignore it, so it is refused.
Otherwise a note names it. A key that RLinf needs is refused if it is absent, or is null where that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import eq
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import entries, shortened
from rlinf_async.entry_points import PREPARATIONS_GROUP, provided
from rlinf_async.hosts.judge.reasons import Reason, is_off, read_conflicts
from rlinf_async.hosts.judge.table import Table, read_rows
from rlinf_async.hosts.rlinf import losses, models
from rlinf_async.hosts.rlinf.config_reads import (
    ANY_KEY,
    ANY_VALUE,
    IF_THERE,
    MARKS,
    SIMULATOR_ARGUMENTS,
    Chain,
    chains_here,
    filled_in,
    of_maniskill,
    readers,
)
from rlinf_async.hosts.rlinf.scoring import TOKEN_MODELS
from rlinf_async.hosts.rlinf.view import RLinfView

FILE = Path(__file__).with_name("keys.toml")
ROWS, DEFAULTS = read_rows(
    FILE,
    {
        "cluster.profiling": {"serves": lambda block: not block or not block.get("enabled", True)},
        "runner.weight_sync_interval": {"null": 1},  # RLinf compares it with 0
        "rollout.expert_model": {"where": lambda view, asynchrony: not view.distils},
        "rollout.sampling_params.top_k": {
            "serves": lambda top_k: top_k is None or top_k <= 0,
            "levels": ("train",),
            "where": lambda view, asynchrony: asynchrony.off_policy and view.model_type in TOKEN_MODELS,
        },
        "actor.fsdp_config.sharding_strategy": {
            "serves": lambda strategy: strategy != "hybrid_shard",
            "where": lambda view, asynchrony: view.fsdp_strategy == "fsdp",  # FSDP2 does not read it
        },
    },
)
CONFLICTS = read_conflicts(
    FILE,
    {
        "COMPARING": losses.COMPARING_TYPES,
        "CRITIC": [name for name, base in losses.ON_POLICY_LOSSES.items() if base == losses.CRITIC_LOSS],
        "EVALUATED": models.EVALUATED_MODELS,
        "WITHOUT_ADAPTERS": models.WITHOUT_ADAPTERS,
    },
)
TABLE = Table(ROWS, conflicts=CONFLICTS, default_of=DEFAULTS.get)
"""Every key of RLinf's config."""
KNOWN_SECTIONS = frozenset({*TABLE.sections, "defaults"})
"""The sections of RLinf's embodied runs, and ours; any other section is the user's own."""
TASK_SIMULATORS = ("isaaclab", "maniskill")
"""Simulators that find a task by its `id`."""


def unserved_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each undecided key of `cfg` (plain data) that RLinf's workers or runners read."""
    for key, value in unknown(cfg).items():
        if is_ignored(key, value):
            yield Reason(
                f"{key}={shortened(value)} is read by RLinf's own workers or runner, and by none of those "
                "that take their places; remove it, or use async.mode=off",
                f"~{key}",
            )


def unknown(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the undecided keys of `cfg` (plain data) that a user has set, with their values."""
    brought = provided(PREPARATIONS_GROUP).names
    return {
        key: value
        for key, value in TABLE.unknown(cfg).items()
        if key.partition(".")[0] not in brought and not (is_off(value) and key in filled_in())
    }


def is_ignored(key: str, value: Any) -> bool:
    """Return True if RLinf's own workers read a key, a block around it, or a key inside.

    A whole section of RLinf that is only passed on does not count as a read of its keys.
    """
    telling = (chain for chain in chains_here() if len(chain) > 1 or chain[0] not in KNOWN_SECTIONS)
    return not is_off(value) and any(all(map(eq, chain, key.split("."))) for chain in telling)


def needed_key_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason for each key that RLinf needs and that is absent, or is in a block that is null."""
    told = set(filled_in())
    for reader, section, chains in readers(view):
        for chain in (section + inner for inner in sorted(chains)):
            known, lack = _lack(view.cfg, chain)
            if lack and known not in told:
                told.add(known)
                read = ".".join(name for name in chain if name not in MARKS)
                yield Reason(f"{known}{lack}: RLinf's {reader} reads {read}; set it")
    for mode, block in view.env_sections.items():
        kind, arguments = block.get("env_type"), block.get(SIMULATOR_ARGUMENTS)
        if not block.get("env_class") and isinstance(arguments, Mapping) and kind in TASK_SIMULATORS:
            yield from _simulator_reasons(arguments, str(kind), key=f"env.{mode}.{SIMULATOR_ARGUMENTS}")


def _simulator_reasons(arguments: Mapping[str, Any], kind: str, *, key: str) -> Iterator[Reason]:
    """Yield a reason for each argument of a simulator, from the block at `key`, that must not be null."""
    if not isinstance(task := arguments.get("id"), str):
        yield Reason(f"{key}.id={'null' if task is None else shortened(task)} must be the name of a task")
    for name, value in entries(arguments).items():
        if value is None and kind == "maniskill" and name.partition(".")[0] in of_maniskill():
            yield Reason(
                f"{key}.{name}=null must have a value: ManiSkill needs one; remove it", f"~{key}.{name}"
            )


def _lack(cfg: Mapping[str, Any], chain: Chain) -> tuple[str, str]:
    """Return the first key of a chain with a fault in `cfg`, and the words for the fault; "" without one."""
    place, key = cfg, ""
    for name in chain:
        shown = "null" if place is None else repr(place)
        if name in (ANY_VALUE, IF_THERE):
            return key, f"={shown} must have a value" if place is None else ""
        if not isinstance(place, Mapping):
            return key, f"={shown} must be a block of keys"
        if name == ANY_KEY:
            break
        key = f"{key}.{name}".lstrip(".")
        if name not in place:
            return key, "" if chain[-1] == IF_THERE else " is missing"
        place = place[name]
    return "", ""
