"""Remarks on keys in the open blocks of a config: those that RLinf passes on, with any key in them.

A key that RLinf has never heard of is misspelt, or meant for another framework: its name is no word of
RLinf's sources. A package's own environment or model may have any key, and other keys of a config may refer
to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from rlinf_async.core.config_keys import entries, lookup, misspelt, shortened
from rlinf_async.entry_points import MODELS_GROUP, names_of
from rlinf_async.hosts.remarks import words_of, words_of_module, words_of_references
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.placement import COMPONENT_NAMES
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.rlinf.worker_process import users_module

DEPTHS = {
    "actor.fsdp_config": 2,
    "actor.model": 1,
    "actor.optim": 1,
    "env.eval": 1,
    "env.train": 1,
    "reward": 1,
    "rollout.model": 1,
    "rollout.sampling_params": 1,
    "runner.logger": 1,
}
"""The blocks that RLinf reads key by key, and the depth to which it does; deeper ones are a simulator's or a
model's own."""
OTHER_WORDS = {
    "actor.optim.learning_rate": "actor.optim.lr",
    "env.train.num_envs": "env.train.total_num_envs",
}
"""Keys with a name that RLinf has elsewhere, and the key that their setting has in RLinf."""


@cache
def _words_of_rlinf() -> frozenset[str]:
    """Return every word of RLinf's sources; none without RLinf."""
    return words_of(sources_of("rlinf").root.rglob("*.py"))


def strange_keys(cfg: Mapping[str, Any], *, unresolved: Any) -> Iterator[str]:
    """Yield a remark for each key of `cfg` (plain data) in an open block that nothing of RLinf reads.

    `unresolved` is `cfg` with its interpolations.
    """
    named = words_of_references(unresolved)

    def is_known(word: str) -> bool:
        # RLinf's sources are read last, which takes a while: most configs name nothing strange.
        return word in named or word in _words_of_rlinf() or word in words_of_module(users_module())

    readers = " or ".join(filter(None, ("RLinf", users_module())))
    for block, depth in DEPTHS.items():
        section: Any = {} if _is_own(cfg, block) else lookup(cfg, block)
        for key, value in entries(section if isinstance(section, Mapping) else {}, f"{block}.").items():
            *outer, name = key.removeprefix(f"{block}.").split(".")
            if value is None or len(outer) >= depth:
                continue
            if (row := TABLE.find(key)) is not None and not row.is_pattern:
                continue
            if (key in OTHER_WORDS or not is_known(name)) and all(map(is_known, outer)):
                shown = key if isinstance(value, Mapping) else f"{key}={shortened(value)}"
                yield f"nothing in {readers} reads {shown}{_hint(key)}"
    for names in lookup(cfg, "cluster.component_placement") or ():
        for name in map(str.strip, str(names).split(",")):
            if name not in COMPONENT_NAMES and not is_known(name):
                yield (
                    f"cluster.component_placement.{name} places nothing: the components of a run are "
                    f"{', '.join(COMPONENT_NAMES)}, and reward if it has a reward model"
                )


def _is_own(cfg: Mapping[str, Any], block: str) -> bool:
    """Return True if a block belongs to an environment or a model that a package declares."""
    section = lookup(cfg, block) or {}
    return bool(section.get("env_class")) or section.get("model_type") in names_of(MODELS_GROUP)


def _hint(key: str) -> str:
    section, _, name = key.rpartition(".")
    rows = (row.name for row in TABLE.rows if not row.is_pattern and row.name.startswith(f"{section}."))
    near = misspelt(name, {row.removeprefix(f"{section}.").partition(".")[0] for row in rows})
    meant = OTHER_WORDS.get(key) or (f"{section}.{near}" if near else "")
    return f"; did you mean {meant}?" if meant else ""
