"""The table of RLinf's config keys: allowed values and effects, from `keys.toml`.

A key without a row is undecided: it is misspelt, or a newer RLinf has it. A test looks for such keys in
RLinf's example configs and in the sources of the classes that ours replace; `unknown` finds them in a
config. If RLinf's own workers or runners read such a key, our replacements would ignore it, so it is refused.
Otherwise a note names it. Their syntax trees tell what they read: a key counts as read if it follows its
section in an expression, as in `cfg.env.get("video_cfg")` or `self.cfg.env["a"].b`, or if it follows a
variable with such a value. Words elsewhere, as in comments, do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import shortened
from rlinf_async.entry_points import PREPARATIONS_GROUP, provided
from rlinf_async.hosts.judge.reasons import Reason, is_off, read_conflicts
from rlinf_async.hosts.judge.table import Fate, Table, read_rows
from rlinf_async.hosts.rlinf import losses, models
from rlinf_async.hosts.rlinf.replacements import ROLE_OF_CLASS, RUNNER_CLASSES
from rlinf_async.hosts.rlinf.scoring import TOKEN_MODELS
from rlinf_async.hosts.rlinf.sources import FUNCTION_NODES, Sources, sources_of
from rlinf_async.hosts.rlinf.tree import rlinf_tree

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
TRANSLATIONS: Mapping[str, Mapping[str, str]] = {
    row.name: dict(each.partition("=")[::2] for each in row.why.split(", "))
    for row in TABLE.rows
    if row.fate == "translated"
}
"""{key of RLinf: {key that takes its place: the value of that key, or "" for the value of RLinf's key}}."""
KNOWN_SECTIONS = frozenset({*TABLE.sections, "defaults"})
"""The sections of RLinf's embodied runs, and ours; any other section is the user's own."""

Chain = tuple[str, ...]
"""The parts of a dotted key, as far as the sources tell them."""
REPLACED_CLASSES = tuple(name.rpartition(".")[::2] for name in (*ROLE_OF_CLASS, *RUNNER_CLASSES))
"""RLinf's workers and runners that ours replace, each as its module and its name."""
READING_METHODS = frozenset({"get", "items", "keys", "pop", "values"})
"""Methods of a section, which are not its keys."""
WHOLE_CONFIGS: Mapping[str, Chain] = {"cfg": (), "config": ()}
"""Variables and attributes of `self` in those classes that hold a whole config."""


def fate(key: str) -> Fate | None:
    """Return the fate of a dotted key; None if it is undecided."""
    row = TABLE.find(key)
    return row.fate if row else None


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


@cache
def filled_in() -> set[str]:
    """Return the keys that RLinf's `validate_cfg` writes into a config by itself, without the user."""
    sources = sources_of("rlinf")
    return set() if sources is None else sources.assigned("cfg", "config.py")


def is_ignored(key: str, value: Any) -> bool:
    """Return True if RLinf's own workers read a key, a block around it, or a key inside.

    A whole section of RLinf that is only passed on does not count as a read of its keys.
    """
    parts = tuple(key.split("."))
    telling = (chain for chain in chains_here() if len(chain) > 1 or chain[0] not in KNOWN_SECTIONS)
    return not is_off(value) and any(
        all(a == b for a, b in zip(chain, parts, strict=False)) for chain in telling
    )


@cache
def chains_here() -> frozenset[Chain]:
    """Return the chains that the replaced classes of the installed RLinf may read; none without RLinf."""
    tree = rlinf_tree()
    return frozenset() if tree is None else chains_of(tree.root)


def chains_of(package: Path) -> frozenset[Chain]:
    """Return the chains that the replaced classes, with their bases in the same files, and the functions in
    these files may read, of the RLinf package in the folder `package`.
    """
    files = sorted({module.partition(".")[2].replace(".", "/") + ".py" for module, _ in REPLACED_CLASSES})
    nodes = [node for file in files for node in Sources(package).tree(file).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    chains = _reads(node for node in nodes if isinstance(node, FUNCTION_NODES))
    return frozenset(chains.union(*(_reads(_with_bases(name, classes)) for _, name in REPLACED_CLASSES)))


def _with_bases(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield the class `name` among `classes`, and those that it extends."""
    if name in classes:
        yield classes[name]
        for base in classes[name].bases:
            yield from _with_bases(getattr(base, "id", ""), classes)


class Chains:
    """Follows the parts of a config through variables and attributes of `self`."""

    def __init__(self, attributes: Mapping[str, Chain]) -> None:
        self.attributes = dict(attributes)
        """The chains that attributes of `self` hold."""

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain of an expression, with the chains that variables hold (`names`): () for the whole
        config, None if it is no part of the config.
        """
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.attributes.get(name)
            case ast.Attribute(value=section, attr=name) if name not in READING_METHODS:
                return self.longer(section, name, names)
            case ast.Subscript(value=section, slice=ast.Constant(value=key)):
                return self.longer(section, key, names)
        return None

    def longer(self, section: ast.expr, key: object, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain of a dotted key in a section; None if `section` or `key` is not one."""
        chain = self.chain(section, names)
        return None if chain is None or not isinstance(key, str) else (*chain, *key.split("."))

    def hold(self, target: ast.AST, chain: Chain | None, names: dict[str, Chain]) -> None:
        """Note that a variable or an attribute of `self` is assigned a chain, or another value (None)."""
        match target:
            case ast.Name(id=name):
                held = names
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                held = self.attributes
            case _:
                return
        held.pop(name, None)
        held |= {} if chain is None else {name: chain}


def optional_read(node: ast.AST) -> tuple[ast.expr, object, ast.expr | None] | None:
    """Return the section, the key and the default of an expression that reads a key which may be absent."""
    match node:
        case ast.Compare(left=ast.Constant(value=key), ops=[ast.In() | ast.NotIn()], comparators=[section]):
            return section, key, None  # `"key" in section`
        case ast.Call(
            func=ast.Attribute(value=section, attr="get"), args=[ast.Constant(value=key), *default]
        ):
            return section, key, next(iter(default), None)  # `section.get("key", default)`
        case ast.Call(
            func=ast.Name(id="getattr") | ast.Attribute(attr="select"),
            args=[section, ast.Constant(value=key), *default],
        ):  # `getattr(section, "key", default)`, `OmegaConf.select(section, "key.of.it")`
            return section, key, next(iter(default), None)
    return None


class _Reads(Chains):
    """Follows the parts of a config also through `a or b` and through reads of keys that may be absent."""

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        if isinstance(node, ast.BoolOp):
            return self.chain(node.values[0], names)
        if read := optional_read(node):
            return self.longer(*read[:2], names)
        return super().chain(node, names)


def _reads(definitions: Iterable[ast.stmt]) -> set[Chain]:
    """Return the chains that functions may read, or a class and its bases with their common attributes."""
    reads, chains = _Reads(WHOLE_CONFIGS), set()
    scopes = [node for each in definitions for node in ast.walk(each) if isinstance(node, FUNCTION_NODES)]
    # Twice: a method may read an attribute that a later one sets.
    for scope in (*scopes, *scopes):
        names = {**WHOLE_CONFIGS}
        nodes = [node for node in ast.walk(scope) if isinstance(node, ast.expr | ast.stmt)]
        methods = {node.func for node in nodes if isinstance(node, ast.Call)}  # `cfg.env.get` is no key
        for node in sorted(nodes, key=lambda node: node.lineno):
            if isinstance(node, ast.Assign) and (held := reads.chain(node.value, names)) is not None:
                for target in node.targets:
                    reads.hold(target, held, names)
            elif isinstance(node, ast.expr) and node not in methods and (chain := reads.chain(node, names)):
                chains.add(chain)
    return chains
