"""The keys of a config that RLinf's own workers and runners read, from the syntax trees of its sources.

A key counts as read if it follows its section in an expression, as in `cfg.env.get("video_cfg")` or
`self.cfg.env["a"].b`, or if it follows a variable with such a value. Words elsewhere, as in comments, do not
count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from rlinf_async.hosts.rlinf.replacements import ROLE_OF_CLASS, RUNNER_CLASSES
from rlinf_async.hosts.rlinf.sources import FUNCTION_NODES, Sources
from rlinf_async.hosts.rlinf.tree import rlinf_tree

Chain = tuple[str, ...]
"""The parts of a dotted key, as far as the sources tell them."""
REPLACED_CLASSES = tuple(name.rpartition(".")[::2] for name in (*ROLE_OF_CLASS, *RUNNER_CLASSES))
"""RLinf's workers and runners that ours replace, each as its module and its name."""
READING_METHODS = frozenset({"get", "items", "keys", "pop", "values"})
"""Methods of a section, which are not its keys."""
WHOLE_CONFIGS: Mapping[str, Chain] = {"cfg": (), "config": ()}
"""Variables and attributes of `self` in those classes that hold a whole config."""


@cache
def chains_here() -> frozenset[Chain]:
    """Return the chains that the replaced classes of the installed RLinf may read; none without RLinf."""
    tree = rlinf_tree()
    return frozenset() if tree is None else chains_of(tree.root)


def chains_of(package: Path) -> frozenset[Chain]:
    """Return the chains that the replaced classes may read, of the RLinf package in the folder `package`."""
    files = {module.partition(".")[2].replace(".", "/") + ".py" for module, _ in REPLACED_CLASSES}
    return chains_in(Sources(package).tree(file) for file in sorted(files))


def chains_in(modules: Iterable[ast.Module]) -> frozenset[Chain]:
    """Return the chains that the functions, the replaced classes and their bases in `modules` may read."""
    nodes = [node for module in modules for node in module.body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    together: list[Sequence[ast.stmt]] = [_with_bases(name, classes) for _, name in REPLACED_CLASSES]
    together.append([node for node in nodes if isinstance(node, FUNCTION_NODES)])
    return frozenset().union(*(_Reads(definitions).chains for definitions in together))


def _with_bases(name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class `name` among `classes`, and those that it extends."""
    waiting, chosen = [name], {}
    while waiting:
        name = waiting.pop()
        if name in classes and name not in chosen:
            chosen[name] = classes[name]
            waiting += [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    return list(chosen.values())


class Chains:
    """Follows the parts of a config through variables and attributes of `self`."""

    def __init__(self, attributes: Mapping[str, Chain]) -> None:
        self.attributes = dict(attributes)
        """The chains that attributes of `self` hold."""

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain of an expression: () for the whole config, None if it is no part of the config.

        `names` are the chains that variables hold.
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

    def hold(self, target: ast.expr, chain: Chain | None, names: dict[str, Chain]) -> None:
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


class _Reads(Chains):
    """Finds the chains that functions may read, or a class and its bases with their common attributes."""

    def __init__(self, definitions: Sequence[ast.stmt]) -> None:
        super().__init__(WHOLE_CONFIGS)
        self.chains: set[Chain] = set()
        nodes = (node for definition in definitions for node in ast.walk(definition))
        scopes = [node for node in nodes if isinstance(node, FUNCTION_NODES)]
        # Twice: a method may read an attribute that a later one sets.
        for scope in (*scopes, *scopes):
            self._read(scope)

    def _read(self, scope: ast.AST) -> None:
        names: dict[str, Chain] = {**WHOLE_CONFIGS}
        methods: set[ast.expr] = set()
        for node in _in_order(scope):
            match node:
                case ast.Call(func=function):
                    methods.add(function)  # the method of `cfg.env.get` is no key
                case ast.Assign(targets=targets, value=value) if (
                    chain := self.chain(value, names)
                ) is not None:
                    for target in targets:
                        self.hold(target, chain, names)
            if isinstance(node, ast.expr) and node not in methods and (chain := self.chain(node, names)):
                self.chains.add(chain)

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        """As in `Chains`; also for `a or b`, for `"key" in section`, and for calls that read one key."""
        match node:
            case ast.BoolOp(values=[first, *_]):
                return self.chain(first, names)
            case (
                ast.Compare(
                    left=ast.Constant(value=key), ops=[ast.In() | ast.NotIn(), *_], comparators=[section, *_]
                )
                | ast.Call(
                    func=ast.Attribute(value=section, attr="get"), args=[ast.Constant(value=key), *_]
                )  # `section.get("key")`
                | ast.Call(
                    func=ast.Name(id="getattr") | ast.Attribute(attr="select"),
                    args=[section, ast.Constant(value=key), *_],
                )  # `getattr(section, "key")`, `OmegaConf.select(section, "key.of.it")`
            ):
                return self.longer(section, key, names)
        return super().chain(node, names)


def _in_order(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `scope` in the order of the text, without those of inner functions."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTION_NODES):
            yield child
            yield from _in_order(child)
