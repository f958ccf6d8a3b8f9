"""Examines a checkout of RLinf: whether this package can extend it, which of its example configs are new, and
which types no table here names.

A type that no table names is treated as unknown: a simulator is one shard, a model is not examined, and a
loss, an advantage or a level of ratios is refused, without a guess at another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.core.config_keys import lookup
from rlinf_async.core.sharding import splitting
from rlinf_async.hosts.rlinf.config_reads import chains_of
from rlinf_async.hosts.rlinf.host import CONFIG_SECTIONS
from rlinf_async.hosts.rlinf.keys import KNOWN_SECTIONS, TABLE
from rlinf_async.hosts.rlinf.losses import (
    ADVANTAGE_TYPES,
    COMPARING_TYPES,
    DISTILLATION,
    LOSSES_WITHOUT_RATIO,
    ON_POLICY_LOSSES,
    OTHER_ADVANTAGES,
    OTHER_ALGORITHMS,
    RATIO_LEVELS,
)
from rlinf_async.hosts.rlinf.models import EVALUATED_MODELS, UNSERVED_MODELS, shared_chance
from rlinf_async.hosts.rlinf.sources import Sources
from rlinf_async.hosts.rlinf.tree import RLinfTree, read_tree
from rlinf_async.observe.yaml_data import FAST_YAML_LOADER

KNOWN_EXAMPLES = Path(__file__).with_name("examples.json")
"""Digests of the example configs in the trees of docs/rlinf-configs.md, by name."""
EXAMPLES_FOLDER = Path("examples") / "embodiment" / "config"


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The findings about a checkout."""

    tree: RLinfTree
    added: tuple[str, ...]
    """Names of on-policy example configs that are in no known tree."""
    changed: tuple[str, ...]
    """Names of on-policy example configs that differ from those of all known trees."""
    unknown_keys: Mapping[str, tuple[str, ...]]
    """Keys of added and changed configs that are not in the table of keys, by config."""
    unknown_values: Mapping[str, tuple[str, ...]]
    """Environments, models, losses, advantages and levels of ratios that are in no table, by key."""
    unknown_reads: tuple[str, ...]
    """Keys that are not in the table of keys, and that RLinf's workers and runners, which ours replace,
    read."""


def look_at(root: Path) -> Checkout:
    """Examine the checkout in `root`; its sources are read, not imported.

    Raises:
        ValueError: there is no package `rlinf`.
    """
    package = root / "rlinf"
    if not (package / "__init__.py").is_file():
        raise ValueError(f"{root} has no package rlinf: give the root of a checkout of RLinf")
    known, found = json.loads(KNOWN_EXAMPLES.read_text()), on_policy_examples(root)
    digests = {name: digest(config) for name, config in found.items()}
    added = tuple(name for name in found if name not in known)
    changed = tuple(name for name in found if name in known and digests[name] not in known[name])
    unknown = {name: _unknown(found[name]) for name in (*added, *changed)}
    return Checkout(
        tree=read_tree(package),
        added=added,
        changed=changed,
        unknown_keys={name: keys for name, keys in unknown.items() if keys},
        unknown_values=unknown_values(values_of(package)),
        unknown_reads=tuple(sorted(_unknown_reads(package))),
    )


def _unknown(config: Mapping[str, Any]) -> tuple[str, ...]:
    sections = {name: config[name] for name in CONFIG_SECTIONS if name in config}
    return tuple(sorted(TABLE.unknown(sections)))


def _unknown_reads(package: Path) -> Iterator[str]:
    for chain in chains_of(package):
        key = ".".join(chain)
        is_known = TABLE.find(key) or any(row.name.startswith(f"{key}.") for row in TABLE.rows)
        # A section that is passed on as a whole is not a key.
        if len(chain) > 1 and chain[0] in KNOWN_SECTIONS and not is_known:
            yield key


def on_policy_examples(root: Path) -> dict[str, dict[str, Any]]:
    """Return the example configs of a checkout that may be on-policy, without their `defaults` applied, by
    name.
    """
    written = {path.stem: read(path) for path in sorted((root / EXAMPLES_FOLDER).glob("*.yaml"))}
    return {name: config for name, config in written.items() if may_be_on_policy(config)}


def may_be_on_policy(config: Mapping[str, Any]) -> bool:
    """Return True unless the file itself sets another loss; its `defaults` are not read."""
    served = (DISTILLATION, *ON_POLICY_LOSSES, *LOSSES_WITHOUT_RATIO)
    return lookup(config, "algorithm.loss_type") in (None, *served)


def read(path: Path) -> dict[str, Any]:
    """Return the content of an example config.

    Raises:
        ValueError: it is no YAML, or has no keys.
    """
    try:
        content = yaml.load(path.read_bytes(), Loader=FAST_YAML_LOADER) or {}
    except (yaml.YAMLError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} cannot be read as a config: this RLinf is damaged; check it out again")
    return content


def digest(config: Mapping[str, Any]) -> str:
    """Return the digest of a config's content, independent of comments and the order of keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12]


def lines_of(found: Checkout) -> list[str]:
    """Return the findings as text, a line for each name or config."""
    lines = [str(found.tree)]
    lines += [f"lacks    {name}" for name in found.tree.missing] or [
        "names    every name that is needed is there"
    ]
    lines += [
        f"values   {key}: {TREATMENT_WORDS[key]} {', '.join(names)}"
        for key, names in found.unknown_values.items()
    ]
    if not found.unknown_values:
        lines.append("values   every environment, model, loss, advantage and level of ratios is known")
    if found.unknown_reads:
        lines.append(f"reads    keys that are not examined: {', '.join(found.unknown_reads)}")
    for what, names in (("adds", found.added), ("changes", found.changed)):
        lines += [f"{what:8} {name}{_keys(found.unknown_keys.get(name, ()))}" for name in names]
    if not found.added and not found.changed:
        lines.append("examples every on-policy config is known")
    return lines


def _keys(names: tuple[str, ...]) -> str:
    return f", with keys that are not examined: {', '.join(names)}" if names else ""


CONFIG_FILE = "config.py"
LOSS_FOLDERS = ("algorithms", "workers", "runners")
"""Folders of RLinf's package with code that registers losses and advantages, or looks them up by name."""


@dataclass(frozen=True, kw_only=True)
class Values:
    """Names that an RLinf accepts as the values of keys of its config."""

    env_type: frozenset[str]
    model_type: frozenset[str]
    """Models for embodied runs."""
    loss_type: frozenset[str]
    adv_type: frozenset[str]
    logprob_type: frozenset[str]


def values_of(package: Path) -> Values:
    """Return the values of the RLinf package in the folder `package`."""
    sources = Sources(package)
    files = [CONFIG_FILE, *_files(package)]

    def given_to(function: str) -> set[str]:
        return {name for file in files for name in sources.given_to(function, file)}

    compared = {name for file in files for name in sources.compared_with("loss_type", file)}
    return Values(
        env_type=frozenset(sources.values_of("rlinf.envs:SupportedEnvType").values()),
        model_type=frozenset(_embodied_models(sources)),
        loss_type=frozenset(given_to("register_policy_loss") | compared),
        adv_type=frozenset(given_to("register_advantage")),
        logprob_type=frozenset(sources.compared_with("logprob_type", "algorithms/utils.py")),
    )


def _files(package: Path) -> Iterator[str]:
    for folder in LOSS_FOLDERS:
        yield from (path.relative_to(package).as_posix() for path in sorted((package / folder).rglob("*.py")))


def _embodied_models(sources: Sources) -> set[str]:
    """Return the models for embodied runs; the same registry has those of RLinf's other tasks."""
    registered = sources.registered("SupportedModel", CONFIG_FILE)
    listed = sources.listed("EMBODIED_MODEL", CONFIG_FILE)
    return {registered[name] for name in listed if name in registered}


def _is_known_model(name: str) -> bool:
    tables = {*EVALUATED_MODELS, *UNSERVED_MODELS, "starvla"}  # which is known by its framework
    return name in tables or shared_chance({"actor": {"model": {"model_type": name}}}) is not None


IS_KNOWN_VALUE: dict[str, Callable[[str], bool]] = {
    "env_type": lambda name: splitting({"env_type": name}) != "unknown",
    "model_type": _is_known_model,
    "loss_type": {DISTILLATION, *ON_POLICY_LOSSES, *LOSSES_WITHOUT_RATIO, *OTHER_ALGORITHMS}.__contains__,
    "adv_type": {DISTILLATION, *ADVANTAGE_TYPES, *COMPARING_TYPES, *OTHER_ADVANTAGES}.__contains__,
    "logprob_type": RATIO_LEVELS.__contains__,
}
"""Functions that return True if a table of this package has a value, for each field of `Values`."""
TREATMENT_WORDS = {
    "env_type": "one shard of each env worker's environments, not examined:",
    "model_type": "level 2 is not examined with",
    "loss_type": "refused are",
    "adv_type": "refused are",
    "logprob_type": "refused, as not examined, are",
}
"""The treatment of values that no table has, as the beginning of a line before their names."""


def unknown_values(values: Values) -> dict[str, tuple[str, ...]]:
    """Return the values that no table of this package has, by their key."""
    unknown = {
        field.name: tuple(
            sorted(name for name in getattr(values, field.name) if not IS_KNOWN_VALUE[field.name](name))
        )
        for field in fields(values)
    }
    return {key: names for key, names in unknown.items() if names}
