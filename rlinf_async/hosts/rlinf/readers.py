"""Finds the keys of a config that RLinf's own workers and runners read, from the syntax trees of its sources,
and judges by them those that no row of our table is about.

A key is read where it stands in a chain with its section: `cfg.env.get("video_cfg")`, `self.cfg.env["a"].b`,
or behind a name that such a chain was given to. A word elsewhere, as in a comment, is no reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import shortened
from rlinf_async.hosts.judge.keys import own_sections
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.judge.rows import asks_for_nothing
from rlinf_async.hosts.rlinf.keys import KNOWN_SECTIONS, TABLE
from rlinf_async.hosts.rlinf.sources import FUNCTIONS, Chain, Chains, is_self, sources_of
from rlinf_async.hosts.rlinf.tree import rlinf_tree

# The files of the classes in `replacements.ROLE_OF_CLASS` and `RUNNER_CLASSES`: a class that is added there
# needs its file and its name here, or keys that it reads are not refused.
REPLACED_FILES = (
    "workers/env/*env_worker.py",
    "workers/rollout/hf/*huggingface_worker.py",
    "workers/actor/async_ppo_fsdp_worker.py",
    "workers/actor/*fsdp_actor_worker.py",
    "runners/embodied_runner.py",
    "runners/async_ppo_embodied_runner.py",
)
"""RLinf's files with the workers and runners that ours take the places of."""
REPLACED_CLASSES = (
    "EnvWorker",
    "AsyncEnvWorker",
    "MultiStepRolloutWorker",
    "AsyncMultiStepRolloutWorker",
    "EmbodiedFSDPActor",
    "AsyncPPOEmbodiedFSDPActor",
    "EmbodiedRunner",
    "AsyncPPOEmbodiedRunner",
)
WHOLE_CONFIGS: Mapping[str, Chain] = {"cfg": (), "config": ()}
"""Names that hold a whole config in those classes, as a variable and as an attribute of `self`."""


def is_read(key: str) -> bool:
    """Return True if RLinf's replaced classes read a dotted key, or the block that it is in or is.

    A section of RLinf's that is handed on as a whole is no reader of each of its keys.
    """
    parts = tuple(key.split("."))
    telling = (chain for chain in chains_here() if len(chain) > 1 or chain[0] not in KNOWN_SECTIONS)
    return any(all(a == b for a, b in zip(chain, parts, strict=False)) for chain in telling)


@cache
def chains_here() -> frozenset[Chain]:
    """The chains that the replaced classes of the RLinf that is here read; none where there is no RLinf."""
    tree = rlinf_tree()
    return frozenset() if tree is None else chains_of(tree.root)


def chains_of(package: Path) -> frozenset[Chain]:
    """The same of the RLinf whose package is in the folder `package`."""
    paths = [path for pattern in REPLACED_FILES for path in sorted(package.glob(pattern))]
    return chains_in([path.read_text() for path in paths])


def chains_in(texts: list[str]) -> frozenset[Chain]:
    """The chains that replaced classes read in sources, with those of their bases and of functions beside."""
    modules = [ast.parse(text) for text in texts]
    classes = {
        node.name: node for module in modules for node in module.body if isinstance(node, ast.ClassDef)
    }
    functions = [node for module in modules for node in module.body if isinstance(node, FUNCTIONS)]
    together: list[Sequence[ast.stmt]] = [_with_bases(name, classes) for name in REPLACED_CLASSES]
    return frozenset().union(*(_Reader(definitions).chains for definitions in [*together, functions]))


def _with_bases(name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class `name` among `classes`, and those that it extends."""
    waiting, chosen = [name], {}
    while waiting:
        name = waiting.pop()
        if name in classes and name not in chosen:
            chosen[name] = classes[name]
            waiting += [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    return list(chosen.values())


class _Reader(Chains):
    """The chains that functions read, or a class with its bases, which share the attributes of `self`."""

    def __init__(self, definitions: Sequence[ast.stmt]) -> None:
        super().__init__(WHOLE_CONFIGS)
        self.chains: set[Chain] = set()
        nodes = (node for definition in definitions for node in ast.walk(definition))
        scopes = [node for node in nodes if isinstance(node, FUNCTIONS)]
        # Twice: a method may read an attribute that a later one sets.
        for _ in range(2):
            for scope in scopes:
                self._read(scope)

    def _read(self, scope: ast.AST) -> None:
        names: dict[str, Chain] = {**WHOLE_CONFIGS}
        methods: set[ast.expr] = set()
        for node in _in_order(scope):
            if isinstance(node, ast.Call):
                methods.add(node.func)  # `get` of `cfg.env.get` is no key
            if isinstance(node, ast.Assign) and (chain := self.chain(node.value, names)) is not None:
                self._keep(node.targets, chain, names)
            if isinstance(node, ast.expr) and node not in methods and (chain := self.chain(node, names)):
                self.chains.add(chain)

    def _keep(self, targets: list[ast.expr], chain: Chain, names: dict[str, Chain]) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                names[target.id] = chain
            elif isinstance(target, ast.Attribute) and is_self(target.value):
                self.attributes[target.attr] = chain

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        """As of `Chains`; also of `a or b`, of `"key" in section`, and of calls that read one key."""
        if isinstance(node, ast.BoolOp):
            return self.chain(node.values[0], names)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            left = node.left.value if isinstance(node.left, ast.Constant) else None
            return self.longer(node.comparators[0], left, names)
        return self._of_call(node, names) if isinstance(node, ast.Call) else super().chain(node, names)

    def _of_call(self, call: ast.Call, names: Mapping[str, Chain]) -> Chain | None:
        """`section.get("key")`, `getattr(section, "key")`, `OmegaConf.select(section, "key.of.it")`."""
        constants = [each.value for each in call.args if isinstance(each, ast.Constant)]
        if not constants:
            return None
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name == "get" and isinstance(call.func, ast.Attribute):
            return self.longer(call.func.value, constants[0], names)
        return self.longer(call.args[0], constants[0], names) if name in ("getattr", "select") else None


def _in_order(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes below `scope` in the order of the text, without those of functions inside of it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from _in_order(child)


def undecided(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each key of `cfg` (plain data) that was not decided on, and that no rule refuses."""
    others = {name: value for name, value in cfg.items() if name not in KNOWN_SECTIONS}
    own = {name: value for name, value in others.items() if not _is_ignored(name, value)}
    yield from own_sections(own, KNOWN_SECTIONS, framework="RLinf")
    for key, value in _unknown(cfg).items():
        if key.partition(".")[0] in KNOWN_SECTIONS and not _is_ignored(key, value):
            near = TABLE.nearest(key)
            hint = f"; did you mean {near}?" if near else ""
            yield (
                f"{key}={shortened(value)}: nobody has looked at what becomes of this key; RLinf's workers "
                f"and runners do not read it{hint}"
            )


def unserved_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """The keys of `cfg` (plain data) that RLinf's own workers and runners read, and ours do not."""
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
        if key.partition(".")[0] not in brought and not (asks_for_nothing(value) and key in filled_in())
    }


@cache
def filled_in() -> set[str]:
    """Keys that RLinf's `validate_cfg` writes into a config by itself: no user has to answer for them."""
    sources = sources_of("rlinf")
    return set() if sources is None else sources.assigned("cfg", "config.py")


def _is_ignored(key: str, value: Any) -> bool:
    """Return True if RLinf's own workers would act on a key."""
    return not asks_for_nothing(value) and is_read(key)
