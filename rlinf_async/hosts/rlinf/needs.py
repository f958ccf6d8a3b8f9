"""Finds the keys without which RLinf's environments and models are not made, from their syntax trees.

A key is needed where a chain of attributes is read whatever else a config says: at the top of `__init__`, of
a method that it calls, of a model's builder, or in both branches of an `if`. RLinf's configs are in struct
mode, which ends a worker at an attribute that is absent; and at one of null, where something below it is
read or set, where it is calculated with, and where a simulator is built of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from rlinf_async.core.config_keys import dotted, lookup, shortened
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES
from rlinf_async.hosts.rlinf.readers import filled_in
from rlinf_async.hosts.rlinf.settings import evaluates
from rlinf_async.hosts.rlinf.sources import SUPER, Chain, Chains, Sources, is_self, sources_of

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
ANY_KEY, ANY_VALUE, IF_THERE = "*", "=", "?"
"""The last part of a chain that needs a block of keys, of one that needs anything but null, and of one that
needs this where the key is there."""
NUMBER_FUNCTIONS = frozenset({"float", "int", "len", "list", "range", "tuple"})
"""Functions of Python that end at null."""
ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
CONVERTER = "to_container"
"""OmegaConf's function that ends at null."""
MOST_CALLS = 4
"""Depth of calls from method to method that are followed."""
ENVIRONMENT_METHODS = ("__init__", "reset", "step")
SIMULATOR_ARGUMENTS, TASK_SIMULATORS = "init_params", ("isaaclab", "maniskill")
"""The section that RLinf's environments build their simulators of, and simulators that find a task by its
`id`."""
MANISKILL_ENV, SIM_CONFIG = "mani_skill.envs.sapien_env:BaseEnv", "sim_config"
"""The class that gets that section in RLinf's ManiSkill, and an argument of numbers that are all needed."""


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
            arguments = section.get(SIMULATOR_ARGUMENTS)
            task = arguments.get("id") if isinstance(arguments, Mapping) else None
            reader, chains = of_environment(sources, str(section.get("env_type")), task)
            yield from _missing(section, chains, key=f"env.{mode}", reader=reader)
            yield from _simulator_reasons(section, key=f"env.{mode}")
    yield from _missing(cfg, LAUNCH_READS, key="", reader="entry script")
    for name in WORKER_SECTIONS:
        yield from _missing(cfg, of_worker(sources, name), key="", reader=name)
    if isinstance(critic := cfg.get("critic"), Mapping):
        yield from _missing(critic, CRITIC_READS, key="critic", reader="validate_cfg")
    model = lookup(cfg, "actor.model")
    chains = of_model(sources, str(model["model_type"]))
    yield from _missing(model, chains, key="actor.model", reader=f"builder of {model['model_type']}")


def _simulator_reasons(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """Yield a reason for each argument of a simulator, in the environments' section at `key`, that cannot be
    null.
    """
    arguments, kind = section.get(SIMULATOR_ARGUMENTS), section.get("env_type")
    if not isinstance(arguments, Mapping) or kind not in TASK_SIMULATORS:
        return
    place = _dotted(key, SIMULATOR_ARGUMENTS)
    if not isinstance(task := arguments.get("id"), str):
        yield Reason(f"{place}.id={'null' if task is None else shortened(task)} must be the name of a task")
    numbers = {SIM_CONFIG: arguments.get(SIM_CONFIG, {})}
    for name, value in {**arguments, **dotted(numbers)}.items():
        if value is None and kind == "maniskill" and name.partition(".")[0] in of_maniskill():
            yield Reason(
                f"{place}.{name}=null must have a value: ManiSkill needs one; remove it", f"~{place}.{name}"
            )


def of_maniskill() -> frozenset[str]:
    """Return the arguments of ManiSkill's environments that have a default and cannot be null."""
    sources = sources_of("mani_skill")
    return frozenset() if sources is None else _never_null(sources)


@cache
def _never_null(sources: Sources) -> frozenset[str]:
    init = sources.methods(MANISKILL_ENV).get("__init__")
    if init is None:
        return frozenset()
    pairs = zip(init.args.args[-len(init.args.defaults) :], init.args.defaults, strict=True)
    return frozenset(
        argument.arg
        for argument, default in pairs
        # Null is false to Python; RLinf itself sets the number of environments.
        if argument.arg != "num_envs"
        and not (isinstance(default, ast.Constant) and default.value in (None, False))
        and "Optional" not in ast.unparse(argument.annotation or default)
    )


def _missing(
    section: Mapping[str, Any], chains: Iterable[Chain], *, key: str, reader: str
) -> Iterator[Reason]:
    told = filled_in()
    for chain in sorted(chains):
        known, lack = _lack(section, chain, key=key)
        if lack and known not in told:
            told = {*told, known}
            read = _dotted(key, *(name for name in chain if name not in (ANY_KEY, ANY_VALUE, IF_THERE)))
            yield Reason(f"{known}{lack}: RLinf's {reader} reads {read}; set it")


def _lack(section: Mapping[str, Any], chain: Chain, *, key: str) -> tuple[str, str]:
    """Return the first key of a chain in `section`, which stands at `key`, that lacks something, and what it
    lacks; both may be "".
    """
    place: Any = section
    for name in chain:
        shown = "null" if place is None else repr(place)
        if name in (ANY_VALUE, IF_THERE):
            return key, f"={shown} must have a value" if place is None else ""
        if not isinstance(place, Mapping):
            return key, f"={shown} must be a block of keys"
        if name == ANY_KEY:
            break
        key = _dotted(key, name)
        if name not in place:
            return key, "" if chain[-1] == IF_THERE else " is missing"
        place = place[name]
    return "", ""


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
def of_environment(sources: Sources, kind: str, task: object = None) -> tuple[str, frozenset[Chain]]:
    """Return the class that RLinf makes of an `env_type`, and the chains that it needs of its section: where
    RLinf chooses among several classes, those that each of them needs. Of a table of tasks' classes that of
    `task` counts, or all without one; a task that is not in it may have a class of the user's, of which
    nothing is known.
    """
    choice, names = sources.definition(CHOICE_PLACE), sources.values_of(ENUM_PLACE)
    for branch in ast.walk(choice) if choice is not None else ():
        if not isinstance(branch, ast.If) or not isinstance(branch.test, ast.Compare):
            continue
        if names.get(getattr(branch.test.comparators[0], "attr", "")) == kind:
            places = [place for node in branch.body for place in _classes(sources, node, task)]
            needs = [_Needs(sources.methods(place)).of(*ENVIRONMENT_METHODS) for place in places]
            # A class that needs nothing itself hands its section on to another.
            known = list(filter(None, needs))
            name = places[-1].partition(":")[2] if places else ""
            return name, frozenset.intersection(*known) if known else frozenset()
    return "", frozenset()


def _classes(sources: Sources, branch: ast.stmt, task: object) -> Iterator[str]:
    """Yield the places of the classes that a statement imports, or of that of `task` in an imported table."""
    for node in (each for each in ast.walk(branch) if isinstance(each, ast.ImportFrom)):
        for alias in node.names:
            found = sources.definition(place := f"{node.module}:{alias.name}")
            if isinstance(found, ast.ClassDef):
                yield place
            elif isinstance(found, ast.Assign) and isinstance(found.value, ast.Dict):
                yield from (
                    f"{node.module}:{getattr(value, 'id', '')}"
                    for key, value in zip(found.value.keys, found.value.values, strict=True)
                    if not isinstance(task, str) or (isinstance(key, ast.Constant) and key.value == task)
                )


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


class _Needs(Chains):
    """The chains that methods of a class, or a function, need of the first parameter of the first of them."""

    def __init__(
        self, methods: Mapping[str, ast.FunctionDef], attributes: Mapping[str, Chain] | None = None
    ) -> None:
        super().__init__(attributes)
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
            if isinstance(node, ast.FunctionDef):
                functions[node.name] = node
            # Behind a branch that may leave the function nothing is read for certain.
            leaves = ast.walk(node) if isinstance(node, ast.If) else (node,)
            if any(isinstance(each, ast.Return | ast.Raise) for each in leaves):
                # A function that is handed back is called: simulators are made so, in processes of their own.
                made = functions.get(getattr(getattr(node, "value", None), "id", ""))
                return found | self._body(made.body, {**names}) if made else found
        return found

    def _statement(self, node: ast.stmt, names: dict[str, Chain]) -> set[Chain]:
        if isinstance(node, ast.If):
            branches = []
            found = self._read(node.test, names)
            for branch in (node.body, node.orelse):
                branches.append(self._body(branch, {**names}))
                self._forget(node, names)
            return found | (branches[0] & branches[1])
        if isinstance(node, ast.With):
            return self._body(node.body, names)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = self._read(node.value, names)
            chain = self.chain(node.value, names)
            return found.union(*(self._keep(target, chain, names) for target in targets))
        if isinstance(node, ast.Expr | ast.Assert | ast.Return):
            value = node.test if isinstance(node, ast.Assert) else node.value
            return set() if value is None else self._read(value, names)
        found = set()
        if isinstance(node, ast.For):
            found = self._read(node.iter, names) | self._used(node.iter, ANY_VALUE, names)
        elif isinstance(node, ast.AugAssign):
            found = self._read(node.value, names)
        self._forget(node, names)
        return found

    def _forget(self, block: ast.stmt, names: dict[str, Chain]) -> None:
        """Drop the chains of all that is assigned somewhere inside, as it may not have been."""
        for node in ast.walk(block):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.pop(node.id, None)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                self.attributes.pop(node.attr, None)

    def _keep(self, target: ast.expr, chain: Chain | None, names: dict[str, Chain]) -> set[Chain]:
        """Note what `target` holds from here on, and return the chains that assigning to it needs."""
        if isinstance(target, ast.Name):
            names.pop(target.id, None)
            names |= {} if chain is None else {target.id: chain}
        elif isinstance(target, ast.Attribute) and is_self(target.value):
            self.attributes.pop(target.attr, None)
            self.attributes |= {} if chain is None else {target.attr: chain}
        if (given := self.chain(target, names)) and chain is None:
            self._set.add(given)
            return {(*given[:-1], ANY_KEY)} if given[1:] else set()
        return set()

    def _read(self, node: ast.AST, names: dict[str, Chain]) -> set[Chain]:
        """Return the chains that an expression reads for certain."""
        if isinstance(node, ast.expr) and self.chain(node, names) is not None:
            return self._used(node, "", names)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.BoolOp):
            return self._read(node.values[0], names)
        if isinstance(node, ast.IfExp):
            return self._read(node.test, names)
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return set()
        found = set().union(*(self._read(child, names) for child in ast.iter_child_nodes(node)))
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod):  # which also formats texts
            return found.union(*(self._used(each, ANY_VALUE, names) for each in (node.left, node.right)))
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ORDERINGS):
            sides = (node.left, *node.comparators)
            return found.union(*(self._used(each, ANY_VALUE, names) for each in sides))
        return found

    def _used(self, node: ast.expr, need: str, names: Mapping[str, Chain]) -> set[Chain]:
        """Return the chain that an expression is, if it is one, with the last part `need`, or "" for none."""
        chain = self.chain(node, names)
        if not chain or any(chain[: len(given)] == given for given in self._set):
            return set()
        # What a simulator is built of is handed to it as it is.
        need = need or (ANY_VALUE if chain[0] == SIMULATOR_ARGUMENTS else "")
        return {chain, (*chain, need)} if need else {chain}

    def _call(self, call: ast.Call, names: dict[str, Chain]) -> set[Chain]:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        found: set[Chain] = set().union(*(self._read(each, names) for each in given))
        for keyword in call.keywords:
            found |= set() if keyword.arg else self._used(keyword.value, ANY_KEY, names)
        found |= self._with_default(call, names)
        function = call.func
        if not isinstance(function, ast.Attribute):
            needs_value = getattr(function, "id", "") in NUMBER_FUNCTIONS
            return found.union(*(self._used(each, ANY_VALUE, names) for each in call.args if needs_value))
        if function.attr == CONVERTER and call.args:
            return found | self._used(call.args[0], ANY_VALUE, names)
        if self.chain(function.value, names) is not None and function.attr in READING_METHODS:
            return found | self._used(function.value, ANY_KEY, names)
        method = self._method(function)
        if method is not None and self._calls < MOST_CALLS:
            arguments = zip(_parameters(method), call.args, strict=False)
            passed = {name: self.chain(argument, names) for name, argument in arguments}
            self._calls += 1
            found |= self._body(
                method.body, {name: chain for name, chain in passed.items() if chain is not None}
            )
            self._calls -= 1
        return found

    def _with_default(self, call: ast.Call, names: Mapping[str, Chain]) -> set[Chain]:
        """Return the chain of `section.get("key", 1)` or `getattr(section, "key", 1)`, where null is not 1.

        A default that is false to Python, as null is, needs nothing.
        """
        values = [*([call.func.value] if isinstance(call.func, ast.Attribute) else []), *call.args]
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in ("get", "getattr") or len(values) != 3:
            return set()
        _, key, default = (getattr(value, "value", None) for value in values)
        chain = self.longer(values[0], key, names)
        return {(*chain, IF_THERE)} if chain and default and default is not True else set()

    def _method(self, function: ast.Attribute) -> ast.FunctionDef | None:
        """Return the method that `self.NAME` or `super().NAME` is."""
        if is_self(function.value):
            return self._methods.get(function.attr)
        is_super = isinstance(function.value, ast.Call) and getattr(function.value.func, "id", "") == "super"
        return self._methods.get(f"{SUPER}{function.attr}") if is_super else None

    def chain(self, node: ast.expr, names: Mapping[str, Chain]) -> Chain | None:
        is_method = isinstance(node, ast.Attribute) and node.attr in READING_METHODS
        return None if is_method else super().chain(node, names)


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]
