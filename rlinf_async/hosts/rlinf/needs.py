"""The keys that RLinf's environments, models and workers need, from its syntax trees; why a config lacks
them.

RLinf's configs are in struct mode: a worker fails when it reads a key that is absent. It also fails at a
null, when it reads or sets a key below it, calculates with it, or passes it to a simulator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from rlinf_async.core.config_keys import entries, lookup, shortened
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES
from rlinf_async.hosts.rlinf.keys import READING_METHODS, Chain, Chains, filled_in, optional_read
from rlinf_async.hosts.rlinf.sources import SUPER_PREFIX, Sources, sources_of
from rlinf_async.hosts.rlinf.view import RLinfView

ENUM_PLACE, CHOICE_PLACE = "rlinf.envs:SupportedEnvType", "rlinf.envs:get_env_cls"
MODELS_FILE, BUILDER = "models/__init__.py", "get_model"
WORKERS = ("EnvWorker", "MultiStepRolloutWorker", "EmbodiedFSDPActor")
"""RLinf's workers of every run."""
WORKER_ATTRIBUTES: Mapping[str, Chain] = {"cfg": (), "_cfg": ("actor",)}
"""The sections of the config that attributes of a worker hold."""
FILLED_IN = (("rollout", "pipeline_stage_num"), ("actor", "fsdp_config"))
"""The number of shards, which a run writes into its config, and a block that `validate_cfg` completes."""
ENVIRONMENT_METHODS = ("__init__", "reset", "step")
ANY_KEY, ANY_VALUE, IF_THERE = MARKS = ("*", "=", "?")
"""The last part of a chain, if it needs a block of keys; any value but null; or any value but null where the
key is there."""
NUMBER_FUNCTIONS = frozenset({"float", "int", "len", "list", "range", "tuple"})
"""Functions of Python that raise for null."""
CONVERTER_FUNCTION = "to_container"
"""OmegaConf's function that raises for null."""
SIMULATOR_ARGUMENTS = "init_params"
"""The section of an environment that its simulator gets as arguments."""
MAX_CALL_DEPTH = 4
"""Depth of calls from method to method that are followed."""
UNSURE_NODES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Expressions whose parts may not run."""
TASK_SIMULATORS = ("isaaclab", "maniskill")
"""Simulators that find a task by its `id`."""


def of_maniskill() -> frozenset[str]:
    """Return the arguments of ManiSkill's environments that have a default and cannot be null."""
    sources = sources_of("mani_skill")
    init = sources.methods("mani_skill.envs.sapien_env:BaseEnv").get("__init__") if sources else None
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


@cache
def of_worker(sources: Sources, name: str) -> frozenset[Chain]:
    """Return the chains of the whole config that one of `WORKERS` needs, except `FILLED_IN`."""
    methods = next(filter(None, map(sources.methods, BORROWED_NAMES[name].places)), {})
    chains = Needs(methods, WORKER_ATTRIBUTES).of("__init__", "init_worker")
    return frozenset(chain for chain in chains if chain[:2] not in FILLED_IN)


@cache
def of_environment(sources: Sources, kind: str, task: object = None) -> tuple[str, frozenset[Chain]]:
    """Return RLinf's class for an `env_type`, and the chains of its section that the class needs.

    If RLinf chooses among several classes, only chains that all of them need are returned. If it has a table
    of classes by task, the class of `task` counts, or all classes without a task. A task that is not in the
    table may have a class of the user's, so that no chain is needed for certain.
    """
    choice, names = sources.definition(CHOICE_PLACE), sources.values_of(ENUM_PLACE)
    for branch in ast.walk(choice) if choice is not None else ():
        match branch:
            case ast.If(test=ast.Compare(comparators=[ast.Attribute(attr=name)])) if names.get(name) == kind:
                places = [place for node in branch.body for place in _classes(sources, node, task)]
                needs = [Needs(sources.methods(place)).of(*ENVIRONMENT_METHODS) for place in places]
                # A class that needs nothing itself hands its section on to another.
                known = list(filter(None, needs))
                name = places[-1].partition(":")[2] if places else ""
                return name, frozenset.intersection(*known) if known else frozenset()
    return "", frozenset()


def _classes(sources: Sources, branch: ast.stmt, task: object) -> Iterator[str]:
    """Yield the places of the classes that a statement imports, or of `task`'s class in an imported table."""
    for node in (each for each in ast.walk(branch) if isinstance(each, ast.ImportFrom)):
        for alias in node.names:
            match sources.definition(place := f"{node.module}:{alias.name}"):
                case ast.ClassDef():
                    yield place
                case ast.Assign(value=ast.Dict(keys=keys, values=values)):
                    for key, value in zip(keys, values, strict=True):
                        if not isinstance(task, str) or getattr(key, "value", None) == task:
                            yield f"{node.module}:{getattr(value, 'id', '')}"


@cache
def of_model(sources: Sources, kind: str) -> frozenset[Chain]:
    """Return the chains of a model's section that RLinf's builder of the model `kind` needs."""
    for function in ast.walk(sources.tree(MODELS_FILE)):
        if isinstance(function, ast.FunctionDef) and function.name == f"_build_{kind}":
            for node in function.body:
                if isinstance(node, ast.ImportFrom) and [each.name for each in node.names] == [BUILDER]:
                    builder = sources.definition(f"{node.module}:{BUILDER}")
                    if isinstance(builder, ast.FunctionDef):
                        return Needs({BUILDER: builder}).of(BUILDER)
    return frozenset()


class Needs(Chains):
    """Finds the chains that a function, or methods of a class, need of the first parameter of the first one.

    A key is needed if every path through the code reads it: at the top level of a method or of a method that
    it calls, or in both branches of an `if`.
    """

    def __init__(
        self, methods: Mapping[str, ast.FunctionDef], attributes: Mapping[str, Chain] = MappingProxyType({})
    ) -> None:
        super().__init__(attributes)
        self._methods = dict(methods)
        self._found: set[Chain] = set()
        self._set: set[Chain] = set()
        """Chains that the code itself assigns, which a config may leave out."""
        self._calls = 0

    def of(self, *names: str) -> frozenset[Chain]:
        """Return the chains that methods need, one after the other."""
        for name in names:
            if function := self._methods.get(name):
                config = _parameters(function)[:1] if name == names[0] else ()
                self._body(function.body, dict.fromkeys(config, ()))
        return frozenset(self._found)

    def _body(self, body: Iterable[ast.stmt], names: dict[str, Chain]) -> None:
        for node in body:
            self._read(node, names)
            # After a branch that may return from the function, no read is certain.
            leaves = ast.walk(node) if isinstance(node, ast.If) else (node,)
            if any(isinstance(each, ast.Return | ast.Raise) for each in leaves):
                break

    def _read(self, node: ast.AST, names: dict[str, Chain]) -> None:
        """Find the chains that a statement or an expression reads for certain."""
        if isinstance(node, ast.expr) and self.chain(node, names) is not None:
            self._use(node, "", names)
            return
        match node:
            case ast.BoolOp(values=[part, *_]) | ast.IfExp(test=part) | ast.Assert(test=part):
                self._read(part, names)
            # A returned function is called later: simulators are built so, in their own processes.
            case ast.Return(value=ast.Name(id=name)) if name in self._methods:
                self._body(self._methods[name].body, {**names})
            case ast.With(body=body):
                self._body(body, names)
            case ast.If():
                self._branches(node, names)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                self._read(value, names)
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._assign(targets, self.chain(value, names), names)
            case ast.Expr() | ast.Return() | ast.keyword() | ast.expr() if not isinstance(node, UNSURE_NODES):
                for child in _parts(node):
                    self._read(child, names)
                self._calculate(node, names)
            case _:
                if isinstance(node, ast.FunctionDef):
                    self._methods[node.name] = node
                self._forget(node, names)

    def _branches(self, node: ast.If, names: dict[str, Chain]) -> None:
        self._read(node.test, names)
        before, branches = self._found, []
        for branch in (node.body, node.orelse):
            self._found = set()
            self._body(branch, {**names})
            branches.append(self._found)
            self._forget(node, names)
        self._found = before | (branches[0] & branches[1])

    def _calculate(self, node: ast.AST, names: Mapping[str, Chain]) -> None:
        for part, need in _uses(node):
            self._use(part, need, names)
        if isinstance(node, ast.Call):
            self._call(node, names)

    def _call(self, call: ast.Call, names: Mapping[str, Chain]) -> None:
        """Find the chains that a call needs: of a key with a default, and of a method's arguments."""
        match optional_read(call):
            case section, key, ast.Constant(value=default) if default and default is not True:
                if chain := self.longer(section, key, names):
                    self._found.add((*chain, IF_THERE))
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                method = self._methods.get(name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                method = self._methods.get(f"{SUPER_PREFIX}{name}")
            case _:
                method = None
        if method is not None and self._calls < MAX_CALL_DEPTH:
            arguments = zip(_parameters(method), call.args, strict=False)
            passed = ((name, self.chain(argument, names)) for name, argument in arguments)
            self._calls += 1
            self._body(method.body, {name: chain for name, chain in passed if chain is not None})
            self._calls -= 1

    def _forget(self, block: ast.AST, names: dict[str, Chain]) -> None:
        """Forget the chains of variables that are assigned inside `block`, as the assignment may not run."""
        for node in ast.walk(block):
            if isinstance(getattr(node, "ctx", None), ast.Store):
                self.hold(node, None, names)

    def _assign(self, targets: Sequence[ast.expr], chain: Chain | None, names: dict[str, Chain]) -> None:
        """Note what `targets` hold from here on, and the blocks that assigning to them needs."""
        for target in targets:
            self.hold(target, chain, names)
            if chain is None and (given := self.chain(target, names)):
                self._set.add(given)
                self._found |= {(*given[:-1], ANY_KEY)} if given[1:] else set()

    def _use(self, node: ast.expr, need: str, names: Mapping[str, Chain]) -> None:
        """Note the chain of an expression, if any, also with the last part `need`, unless that is ""."""
        chain = self.chain(node, names)
        if chain and not any(chain[: len(given)] == given for given in self._set):
            # Arguments of a simulator are passed on unchanged.
            last = need or (ANY_VALUE if chain[0] == SIMULATOR_ARGUMENTS else "")
            self._found |= {chain, (*chain, last)} if last else {chain}


def _uses(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the expressions in a node at whose null it raises, each with the mark of what it needs."""
    match node:
        # `%` formats texts, too.
        case ast.BinOp(left=left, right=right, op=op) if not isinstance(op, ast.Mod):
            yield from ((part, ANY_VALUE) for part in (left, right))
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_]):
            yield from ((part, ANY_VALUE) for part in (left, *node.comparators))
        case ast.Call(func=function, args=arguments, keywords=keywords):
            yield from ((keyword.value, ANY_KEY) for keyword in keywords if not keyword.arg)
            match function:
                case ast.Name(id=name) if name in NUMBER_FUNCTIONS:
                    yield from ((part, ANY_VALUE) for part in arguments)
                case ast.Attribute(attr=name) if name == CONVERTER_FUNCTION:
                    yield from ((part, ANY_VALUE) for part in arguments[:1])
                case ast.Attribute(value=section, attr=name) if name in READING_METHODS:
                    yield section, ANY_KEY


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    """Return the expressions in a node; of a call its arguments."""
    return [*node.args, *node.keywords] if isinstance(node, ast.Call) else ast.iter_child_nodes(node)


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]


def needed_key_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason for each key that RLinf needs and that is absent, or is in a block that is null."""
    if (sources := sources_of("rlinf")) is None:
        return
    told = set(filled_in())
    for reader, section, chains in _readers(view, sources):
        for chain in (section + inner for inner in sorted(chains)):
            known, lack = _lack(view.cfg, chain)
            if lack and known not in told:
                told.add(known)
                read = ".".join(name for name in chain if name not in MARKS)
                yield Reason(f"{known}{lack}: RLinf's {reader} reads {read}; set it")
    for mode, block in view.env_sections.items():
        kind, arguments = block.get("env_type"), block.get(SIMULATOR_ARGUMENTS)
        if not block.get("env_class") and isinstance(arguments, Mapping) and kind in TASK_SIMULATORS:
            yield from _simulator_reasons(arguments, str(kind), key=f"env.{mode}.{SIMULATOR_ARGUMENTS}")


def _readers(view: RLinfView, sources: Sources) -> Iterator[tuple[str, Chain, Iterable[Chain]]]:
    """Yield the parts of RLinf that read a config: their names, their sections, and the chains that they need
    of these.
    """
    for mode, section in view.env_sections.items():
        yield "env worker", ("env", mode), {("video_cfg", "save_video")}
        if not section.get("env_class"):
            kind, task = str(section.get("env_type")), lookup(section, f"{SIMULATOR_ARGUMENTS}.id")
            name, chains = of_environment(sources, kind, task)
            yield name, ("env", mode), chains
    yield "entry script", (), {(name, "group_name") for name in ("actor", "env", "rollout")}
    for name in WORKERS:
        yield name, (), of_worker(sources, name)
    if isinstance(view.cfg.get("critic"), Mapping):
        yield "validate_cfg", ("critic",), {("use_critic_model",)}
    yield f"builder of {view.model_type}", ("actor", "model"), of_model(sources, str(view.model_type))


def _simulator_reasons(arguments: Mapping[str, Any], kind: str, *, key: str) -> Iterator[Reason]:
    """Yield a reason for each argument of a simulator, from the block at `key`, that must not be null."""
    if not isinstance(task := arguments.get("id"), str):
        yield Reason(f"{key}.id={'null' if task is None else shortened(task)} must be the name of a task")
    for name, value in entries(arguments).items():
        if value is None and kind == "maniskill" and name.partition(".")[0] in of_maniskill():
            yield Reason(
                f"{key}.{name}=null must have a value: ManiSkill needs one; remove it", f"~{key}.{name}"
            )


def _lack(cfg: Mapping[str, Any], chain: Chain) -> tuple[str, str]:
    """Return the first key of a chain with a fault in `cfg`, and the words for the fault; "" without one."""
    place, key = cfg, ""
    for name in chain:
        shown = "null" if place is None else repr(place)
        if name in (ANY_VALUE, IF_THERE):
            return key, f"={shown} must have a value" if place is None else ""
        if not isinstance(place, Mapping):
            return key, f"={shown} must be a block of keys"
        if name == ANY_KEY:
            break
        key = f"{key}.{name}".lstrip(".")
        if name not in place:
            return key, "" if chain[-1] == IF_THERE else " is missing"
        place = place[name]
    return "", ""
