"""Finds the keys without which RLinf's environments and models are not made, from their syntax trees.

A key is needed where a chain of attributes is read whatever else a config says: at the top of `__init__`, of
a method that it calls, of a model's builder, or in both branches of an `if`. RLinf's configs are in struct
mode, which ends a worker at an attribute that is absent; and at one of null, where something below it is
read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES
from rlinf_async.hosts.rlinf.readers import Chain, filled_in, is_self
from rlinf_async.hosts.rlinf.settings import evaluates
from rlinf_async.hosts.rlinf.sources import Sources, sources_of

ENUM_PLACE, CHOICE_PLACE = "rlinf.envs:SupportedEnvType", "rlinf.envs:get_env_cls"
MODELS_FILE, BUILDER = "models/__init__.py", "get_model"
WORKER_SECTIONS: Mapping[str, Mapping[str, Chain]] = {
    "EnvWorker": {"cfg": ()},
    "MultiStepRolloutWorker": {"cfg": ()},
    "EmbodiedFSDPActor": {"cfg": (), "_cfg": ("actor",)},
}
"""RLinf's workers that every run has, and the sections that attributes of theirs hold."""
LAUNCH_READS: frozenset[Chain] = frozenset((name, "group_name") for name in ("actor", "env", "rollout"))
CRITIC_READS: frozenset[Chain] = frozenset({("use_critic_model",)})
"""The key of a block `critic` that RLinf's `validate_cfg` reads."""
OWN_READS: frozenset[Chain] = frozenset({("video_cfg", "save_video")})
"""The key of a section of environments that our env shards read."""
FILLED_IN = (("rollout", "pipeline_stage_num"), ("actor", "fsdp_config"))
"""The number of shards, which a run writes into its config, and a block that `validate_cfg` completes."""
READING_METHODS = frozenset({"get", "items", "keys", "pop", "values"})
MOST_CALLS = 4
"""Depth of calls from method to method that are followed."""


def needed_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each key of `cfg` (plain data) that RLinf cannot do without, and that is absent or
    in a block that is null.
    """
    sources = sources_of("rlinf")
    if sources is None:
        return
    for mode in ("train", "eval") if evaluates(cfg) else ("train",):
        section = lookup(cfg, f"env.{mode}")
        if not isinstance(section, Mapping):
            continue
        yield from _missing(section, OWN_READS, key=f"env.{mode}", reader="env worker")
        if not section.get("env_class"):
            reader, chains = of_environment(sources, str(section.get("env_type")))
            yield from _missing(section, chains, key=f"env.{mode}", reader=reader)
    yield from _missing(cfg, LAUNCH_READS, key="", reader="entry script")
    for name in WORKER_SECTIONS:
        yield from _missing(cfg, of_worker(sources, name), key="", reader=name)
    if isinstance(critic := cfg.get("critic"), Mapping):
        yield from _missing(critic, CRITIC_READS, key="critic", reader="validate_cfg")
    model = lookup(cfg, "actor.model")
    chains = of_model(sources, str(model["model_type"]))
    yield from _missing(model, chains, key="actor.model", reader=f"builder of {model['model_type']}")


def _missing(
    section: Mapping[str, Any], chains: Iterable[Chain], *, key: str, reader: str
) -> Iterator[Reason]:
    told = filled_in()
    for chain in sorted(chains):
        place: Any = section
        for depth, name in enumerate(chain):
            known = _dotted(key, *chain[:depth])
            if not isinstance(place, Mapping) or name not in place:
                break
            place = place[name]
        else:
            continue
        whole = _dotted(key, *chain)
        reads = f"RLinf's {reader} reads {whole}"
        if isinstance(place, Mapping):
            known = _dotted(known, name)
            text = f"{known} is missing: {reads}; add it"
        else:
            text = f"{known}={'null' if place is None else repr(place)} must be a block of keys: {reads}"
        if known not in told:
            told = {*told, known}
            yield Reason(text)


def _dotted(*names: str) -> str:
    return ".".join(filter(None, names))


@cache
def of_worker(sources: Sources, name: str) -> frozenset[Chain]:
    """Return the chains that one of RLinf's workers needs of the whole config, besides those that we or
    RLinf's own check of it fill in.
    """
    places = BORROWED_NAMES[name].places
    methods = next((sources.methods(place) for place in places if sources.defines(place)), {})
    chains = _Needs(methods, WORKER_SECTIONS[name]).of("__init__", "init_worker")
    return frozenset(chain for chain in chains if chain[:2] not in FILLED_IN)


@cache
def of_environment(sources: Sources, kind: str) -> tuple[str, frozenset[Chain]]:
    """Return the class that RLinf makes of an `env_type`, and the chains that it needs of its section; none
    where RLinf chooses among several.
    """
    choice, names = sources.definition(CHOICE_PLACE), sources.values_of(ENUM_PLACE)
    for branch in ast.walk(choice) if choice is not None else ():
        if not isinstance(branch, ast.If) or not isinstance(branch.test, ast.Compare):
            continue
        member = getattr(branch.test.comparators[0], "attr", "")
        imports = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
        if names.get(member) == kind and len(imports) == 1 and len(imports[0].names) == 1:
            name = imports[0].names[0].name
            methods = sources.methods(f"{imports[0].module}:{name}")
            return name, _Needs(methods).of("__init__")
    return "", frozenset()


@cache
def of_model(sources: Sources, kind: str) -> frozenset[Chain]:
    """Return the chains that the builder of RLinf's models called `kind` needs of their section."""
    modules = {
        function.name: node.module
        for function in ast.walk(sources.tree(MODELS_FILE))
        if isinstance(function, ast.FunctionDef)
        for node in function.body
        if isinstance(node, ast.ImportFrom) and [each.name for each in node.names] == [BUILDER]
    }
    builder = sources.definition(f"{modules.get(f'_build_{kind}')}:{BUILDER}")
    return _Needs({BUILDER: builder}).of(BUILDER) if isinstance(builder, ast.FunctionDef) else frozenset()


class _Needs:
    """The chains that methods of a class, or a function, need of their first parameter besides `self`."""

    def __init__(
        self, methods: Mapping[str, ast.FunctionDef], attributes: Mapping[str, Chain] | None = None
    ) -> None:
        self._methods = methods
        self._attributes: dict[str, Chain] = dict(attributes or {})
        """The chains that attributes of `self` hold."""
        self._set: set[Chain] = set()
        """Chains that the code itself assigns, which a config may leave out."""
        self._calls = 0

    def of(self, *names: str) -> frozenset[Chain]:
        """Return the chains that methods need, one after the other."""
        found: set[Chain] = set()
        for function in filter(None, map(self._methods.get, names)):
            parameters = [arg.arg for arg in function.args.args if arg.arg != "self"]
            found |= self._body(function.body, {parameters[0]: ()} if parameters else {})
        return frozenset(found)

    def _body(self, body: Iterable[ast.stmt], names: dict[str, Chain]) -> set[Chain]:
        found: set[Chain] = set()
        for node in body:
            if isinstance(node, ast.If):
                found |= self._read(node.test, names)
                found |= self._body(node.body, {**names}) & self._body(node.orelse, {**names})
                # Behind a branch that may leave the function nothing is read for certain.
                if any(isinstance(each, ast.Return | ast.Raise) for each in ast.walk(node)):
                    break
            elif isinstance(node, ast.With):
                found |= self._body(node.body, names)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                found |= self._read(node.value, names)
                for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
                    self._keep(target, self._chain(node.value, names), names)
            elif isinstance(node, ast.For):
                found |= self._read(node.iter, names)
            elif isinstance(node, ast.Expr | ast.AugAssign | ast.Assert | ast.Return):
                value = node.test if isinstance(node, ast.Assert) else node.value
                found |= self._read(value, names) if value is not None else set()
            if isinstance(node, ast.Return | ast.Raise):
                break
        return found

    def _keep(self, target: ast.expr, chain: Chain | None, names: dict[str, Chain]) -> None:
        if isinstance(target, ast.Name):
            names.pop(target.id, None)
            names |= {} if chain is None else {target.id: chain}
        elif isinstance(target, ast.Attribute) and is_self(target.value):
            self._attributes.pop(target.attr, None)
            self._attributes |= {} if chain is None else {target.attr: chain}
        if (given := self._chain(target, names)) and chain is None:
            self._set.add(given)

    def _read(self, node: ast.AST, names: dict[str, Chain]) -> set[Chain]:
        """Return the chains that an expression reads for certain."""
        if isinstance(node, ast.expr) and (chain := self._chain(node, names)) is not None:
            is_given = any(chain[: len(given)] == given for given in self._set)
            return {chain} if chain and not is_given else set()
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.BoolOp):
            return self._read(node.values[0], names)
        if isinstance(node, ast.IfExp):
            return self._read(node.test, names)
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return set()
        return set().union(*(self._read(child, names) for child in ast.iter_child_nodes(node)))

    def _call(self, call: ast.Call, names: dict[str, Chain]) -> set[Chain]:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        found: set[Chain] = set().union(*(self._read(each, names) for each in given))
        function = call.func
        if not isinstance(function, ast.Attribute):
            return found
        base = self._chain(function.value, names)
        if base is not None and function.attr in READING_METHODS:
            return found | self._read(function.value, names)
        method = self._methods.get(function.attr)
        if is_self(function.value) and method is not None and self._calls < MOST_CALLS:
            parameters = [arg.arg for arg in method.args.args if arg.arg != "self"]
            passed = {name: self._chain(arg, names) for name, arg in zip(parameters, call.args, strict=False)}
            self._calls += 1
            found |= self._body(
                method.body, {name: chain for name, chain in passed.items() if chain is not None}
            )
            self._calls -= 1
        return found

    def _chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain that an expression is: () for the whole section, None for another expression."""
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute):
            if is_self(node.value):
                return self._attributes.get(node.attr)
            base, name = self._chain(node.value, names), node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base, name = self._chain(node.value, names), str(node.slice.value)
        else:
            return None
        return None if base is None or name in READING_METHODS else (*base, name)
