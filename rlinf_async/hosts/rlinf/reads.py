"""The keys of a config that RLinf's code may read, and those that it needs, from its syntax trees.

A key is read where it stands in a chain with its section: `cfg.env.get("video_cfg")`, `self.cfg.env["a"].b`,
or behind a name that such a chain was given to. A word elsewhere, as in a comment, is no reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from rlinf_async.hosts.rlinf.sources import FUNCTIONS, SUPER
from rlinf_async.hosts.rlinf.tree import rlinf_tree

Chain = tuple[str, ...]
"""The parts of a dotted key, as far as the sources tell them."""
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
READING_METHODS = frozenset({"get", "items", "keys", "pop", "values"})
ANY_KEY, ANY_VALUE, IF_THERE = "*", "=", "?"
"""The last part of a chain that needs a block of keys, of one that needs anything but null, and of one that
needs this where the key is there."""
NUMBER_FUNCTIONS = frozenset({"float", "int", "len", "list", "range", "tuple"})
"""Functions of Python that end at null."""
CONVERTER = "to_container"
"""OmegaConf's function that ends at null."""
SIMULATOR_ARGUMENTS = "init_params"
"""The section that RLinf's environments build their simulators of."""
MOST_CALLS = 4
"""Depth of calls from method to method that are followed."""


@cache
def chains_here() -> frozenset[Chain]:
    """The chains that the replaced classes of the installed RLinf may read; none without RLinf."""
    tree = rlinf_tree()
    return frozenset() if tree is None else chains_of(tree.root)


def chains_of(package: Path) -> frozenset[Chain]:
    """The same of the RLinf whose package is in the folder `package`."""
    paths = [path for pattern in REPLACED_FILES for path in sorted(package.glob(pattern))]
    return chains_in([path.read_text() for path in paths])


def chains_in(texts: list[str]) -> frozenset[Chain]:
    """The chains that replaced classes in sources may read, their bases, and the functions beside them."""
    nodes = [node for text in texts for node in ast.parse(text).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    together: list[Sequence[ast.stmt]] = [_with_bases(name, classes) for name in REPLACED_CLASSES]
    together.append([node for node in nodes if isinstance(node, FUNCTIONS)])
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
        """Return the chain that an expression is: () for the whole config, None for another expression.

        `names` are the chains that variables hold.
        """
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.attributes.get(name)
            case ast.Attribute(value=section, attr=name):
                return self.longer(section, name, names)
            case ast.Subscript(value=section, slice=ast.Constant(value=key)):
                return self.longer(section, key, names)
        return None

    def longer(self, section: ast.expr, key: object, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain of a dotted key in a section; None if either is none."""
        chain = self.chain(section, names)
        return None if chain is None or not isinstance(key, str) else (*chain, *key.split("."))

    def hold(self, target: ast.expr, chain: Chain | None, names: dict[str, Chain]) -> None:
        """Note what is assigned to a variable or to an attribute of `self`: a chain, or None for the rest."""
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
    """The chains that functions may read, or a class with its bases, which share the attributes of `self`."""

    def __init__(self, definitions: Sequence[ast.stmt]) -> None:
        super().__init__(WHOLE_CONFIGS)
        self.chains: set[Chain] = set()
        nodes = (node for definition in definitions for node in ast.walk(definition))
        scopes = [node for node in nodes if isinstance(node, FUNCTIONS)]
        # Twice: a method may read an attribute that a later one sets.
        for scope in (*scopes, *scopes):
            self._read(scope)

    def _read(self, scope: ast.AST) -> None:
        names: dict[str, Chain] = {**WHOLE_CONFIGS}
        methods: set[ast.expr] = set()
        for node in _in_order(scope):
            match node:
                case ast.Call(func=function):
                    methods.add(function)  # `get` of `cfg.env.get` is no key
                case ast.Assign(targets=targets, value=value) if (
                    chain := self.chain(value, names)
                ) is not None:
                    for target in targets:
                        self.hold(target, chain, names)
            if isinstance(node, ast.expr) and node not in methods and (chain := self.chain(node, names)):
                self.chains.add(chain)

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        """As of `Chains`; also of `a or b`, of `"key" in section`, and of calls that read one key."""
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
    """Nodes below `scope` in the order of the text, without those of functions inside of it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from _in_order(child)


class Needs(Chains):
    """The chains that methods of a class, or a function, need of the first parameter of the first of them.

    A key is needed where it is read whatever else a config says: at the top of a method, of a method that it
    calls, or in both branches of an `if`.
    """

    def __init__(
        self, methods: Mapping[str, ast.FunctionDef], attributes: Mapping[str, Chain] | None = None
    ) -> None:
        super().__init__(attributes or {})
        self._methods = methods
        self._set: set[Chain] = set()
        """Chains that the code itself assigns, which a config may leave out."""
        self._calls = 0

    def of(self, *names: str) -> frozenset[Chain]:
        """Return the chains that methods need, one after the other."""
        found: set[Chain] = set()
        for name in names:
            if function := self._methods.get(name):
                config = _parameters(function)[:1] if name == names[0] else ()
                found |= self._body(function.body, dict.fromkeys(config, ()))
        return frozenset(found)

    def _body(self, body: Iterable[ast.stmt], names: dict[str, Chain]) -> set[Chain]:
        found: set[Chain] = set()
        functions: dict[str, ast.FunctionDef] = {}
        for node in body:
            found |= self._statement(node, names)
            match node:
                case ast.FunctionDef(name=name):
                    functions[name] = node
                # A function that is handed back is called: simulators are made so, in processes of their own.
                case ast.Return(value=ast.Name(id=name)) if name in functions:
                    return found | self._body(functions[name].body, {**names})
            # Behind a branch that may leave the function nothing is read for certain.
            leaves = ast.walk(node) if isinstance(node, ast.If) else (node,)
            if any(isinstance(each, ast.Return | ast.Raise) for each in leaves):
                return found
        return found

    def _statement(self, node: ast.stmt, names: dict[str, Chain]) -> set[Chain]:
        found: set[Chain] = set()
        match node:
            case ast.If(test=test, body=body, orelse=otherwise):
                found = self._read(test, names)
                branches = []
                for branch in (body, otherwise):
                    branches.append(self._body(branch, {**names}))
                    self._forget(node, names)
                return found | (branches[0] & branches[1])
            case ast.With(body=body):
                return self._body(body, names)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found, chain = self._read(value, names), self.chain(value, names)
                return found.union(*(self._assign(target, chain, names) for target in targets))
            case ast.Expr(value=value) | ast.Assert(test=value) | ast.Return(value=ast.expr() as value):
                return self._read(value, names)
            case ast.For(iter=value):
                found = self._read(value, names) | self._used([value], ANY_VALUE, names)
            case ast.AugAssign(value=value):
                found = self._read(value, names)
        self._forget(node, names)
        return found

    def _forget(self, block: ast.stmt, names: dict[str, Chain]) -> None:
        """Drop the chains of all that is assigned somewhere inside, as it may not have been."""
        for node in ast.walk(block):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                self.hold(node, None, names)

    def _assign(self, target: ast.expr, chain: Chain | None, names: dict[str, Chain]) -> set[Chain]:
        """Note what `target` holds from here on, and return the chains that assigning to it needs."""
        self.hold(target, chain, names)
        if chain is not None or not (given := self.chain(target, names)):
            return set()
        self._set.add(given)
        return {(*given[:-1], ANY_KEY)} if given[1:] else set()

    def _read(self, node: ast.AST, names: dict[str, Chain]) -> set[Chain]:
        """Return the chains that an expression reads for certain."""
        if isinstance(node, ast.expr) and self.chain(node, names) is not None:
            return self._used([node], "", names)
        match node:
            case ast.Call():
                return self._call(node, names)
            case ast.BoolOp(values=[first, *_]) | ast.IfExp(test=first):
                return self._read(first, names)
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return set()
        found = set().union(*(self._read(child, names) for child in ast.iter_child_nodes(node)))
        match node:
            case ast.BinOp(op=ast.Mod()):  # which also formats texts
                return found
            case ast.BinOp(left=left, right=right):
                return found | self._used([left, right], ANY_VALUE, names)
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_]):
                return found | self._used([left, *node.comparators], ANY_VALUE, names)
        return found

    def _used(self, nodes: Iterable[ast.expr], need: str, names: Mapping[str, Chain]) -> set[Chain]:
        """Return the chains among expressions, each also with the last part `need`, unless that is ""."""
        found: set[Chain] = set()
        for chain in filter(None, (self.chain(node, names) for node in nodes)):
            if any(chain[: len(given)] == given for given in self._set):
                continue
            # What a simulator is built of is handed to it as it is.
            last = need or (ANY_VALUE if chain[0] == SIMULATOR_ARGUMENTS else "")
            found |= {chain, (*chain, last)} if last else {chain}
        return found

    def _call(self, call: ast.Call, names: dict[str, Chain]) -> set[Chain]:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        found: set[Chain] = set().union(*(self._read(each, names) for each in given))
        blocks = [keyword.value for keyword in call.keywords if not keyword.arg]
        found |= self._used(blocks, ANY_KEY, names) | self._with_default(call, names)
        match call.func:
            case ast.Name(id=name) if name in NUMBER_FUNCTIONS:
                return found | self._used(call.args, ANY_VALUE, names)
            case ast.Attribute(attr=name) if name == CONVERTER and call.args:
                return found | self._used(call.args[:1], ANY_VALUE, names)
            case ast.Attribute(value=section, attr=name) if (
                name in READING_METHODS and self.chain(section, names) is not None
            ):
                return found | self._used([section], ANY_KEY, names)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return found | self._inside(self._methods.get(name), call, names)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                return found | self._inside(self._methods.get(f"{SUPER}{name}"), call, names)
        return found

    def _inside(
        self, method: ast.FunctionDef | None, call: ast.Call, names: Mapping[str, Chain]
    ) -> set[Chain]:
        """Return the chains that a method needs of what a call hands to it."""
        if method is None or self._calls == MOST_CALLS:
            return set()
        arguments = zip(_parameters(method), call.args, strict=False)
        passed = ((name, self.chain(argument, names)) for name, argument in arguments)
        self._calls += 1
        found = self._body(method.body, {name: chain for name, chain in passed if chain is not None})
        self._calls -= 1
        return found

    def _with_default(self, call: ast.Call, names: Mapping[str, Chain]) -> set[Chain]:
        """Return the chain of `section.get("key", 1)` or `getattr(section, "key", 1)`, where null is not 1.

        A default that is false to Python, as null is, needs nothing.
        """
        match call:
            case (
                ast.Call(
                    func=ast.Attribute(value=section, attr="get"),
                    args=[ast.Constant(value=key), ast.Constant(value=default)],
                )
                | ast.Call(
                    func=ast.Name(id="getattr"),
                    args=[section, ast.Constant(value=key), ast.Constant(value=default)],
                )
            ) if default and default is not True:
                chain = self.longer(section, key, names)
                return {(*chain, IF_THERE)} if chain else set()
        return set()

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        is_method = isinstance(node, ast.Attribute) and node.attr in READING_METHODS
        return None if is_method else super().chain(node, names)


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]
