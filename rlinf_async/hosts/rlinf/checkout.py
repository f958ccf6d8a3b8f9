"""Examines a checkout of RLinf: whether this package can extend it, and which of its example configs are
new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.rlinf.host import CONFIG_SECTIONS
from rlinf_async.hosts.rlinf.keys import KNOWN_SECTIONS, TABLE
from rlinf_async.hosts.rlinf.losses import ON_POLICY_LOSSES
from rlinf_async.hosts.rlinf.reads import chains_of
from rlinf_async.hosts.rlinf.tree import RLinfTree, read_tree
from rlinf_async.hosts.rlinf.values import BECOMES, unknown_values, values_of
from rlinf_async.observe.plain_data import FAST_YAML_LOADER

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
    return lookup(config, "algorithm.loss_type") in (None, *ON_POLICY_LOSSES)


def read(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(), Loader=FAST_YAML_LOADER) or {}


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
        f"values   {key}: {BECOMES[key]} {', '.join(names)}" for key, names in found.unknown_values.items()
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
