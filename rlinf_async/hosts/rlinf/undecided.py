"""Keys of a config that were not decided on here: a newer RLinf has them, or they are unknown.

Where RLinf's own workers and runners read such a key, the classes that take their places would ignore it: it
is refused. Elsewhere RLinf's own code still reads it, or no code does, and a note names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rlinf_async.hosts.kit.keys import asks_for_nothing, shortened
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.tree import rlinf_tree

REPLACED_FILES = (
    "workers/env/*env_worker.py",
    "workers/rollout/hf/*huggingface_worker.py",
    "workers/actor/async_ppo_fsdp_worker.py",
    "workers/actor/*fsdp_actor_worker.py",
    "runners/embodied_runner.py",
    "runners/async_ppo_embodied_runner.py",
)
"""RLinf's files with the workers and runners that ours take the places of."""


def undecided(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each key of `cfg` (plain data) that was not decided on, and that no rule refuses."""
    for key, value in _unknown(cfg).items():
        if not _ignored(key, value):
            near = TABLE.nearest(key)
            hint = f"; did you mean {near}?" if near else ""
            yield (
                f"{key}={shortened(value)}: nobody has looked at what becomes of this key; RLinf's workers "
                f"and runners do not read it{hint}"
            )


def read_by_others(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """The keys of `cfg` (plain data) that RLinf's own workers and runners read, and ours do not."""
    for key, value in _unknown(cfg).items():
        if _ignored(key, value):
            yield Reason(
                f"{key}={shortened(value)} is read by RLinf's own workers or runner, and by none of those "
                "that take their places; remove it, or use async.mode=off",
                f"~{key}",
            )


def _unknown(cfg: Mapping[str, Any]) -> dict[str, Any]:
    brought = entry_points(group="rlinf_async.preparations").names
    return {key: value for key, value in TABLE.unknown(cfg).items() if key.partition(".")[0] not in brought}


def _ignored(key: str, value: Any) -> bool:
    """Return True if RLinf's own workers would act on a key, by the name that it has in its section."""
    name = key.split(".")[min(1, key.count("."))]
    return not asks_for_nothing(value) and bool(re.search(rf"\b{re.escape(name)}\b", _sources()))


@cache
def _sources() -> str:
    tree = rlinf_tree()
    root = tree.root if tree else Path("nowhere")
    return "\n".join(path.read_text() for pattern in REPLACED_FILES for path in sorted(root.glob(pattern)))
