"""The keys of a config that RLinf's code reads, found in its syntax trees, without importing it.

There are two questions. `chains_of` returns the keys that RLinf's own workers and runners may read. A key
counts as read if it follows its section in an expression, as in `cfg.env.get("video_cfg")` or
`self.cfg.env["a"].b`, or if it follows a variable with such a value; words elsewhere, as in comments, do not
count. `readers` returns the keys that a run of a config needs: RLinf's configs are in struct mode, so that a
worker fails when it reads a key that is absent. It also fails at a null, when it reads or sets a key below
it, calculates with it, or passes it to a simulator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES
from rlinf_async.hosts.rlinf.replacements import ROLE_OF_CLASS, RUNNER_CLASSES
from rlinf_async.hosts.rlinf.sources import FUNCTION_NODES, SUPER_PREFIX, Sources, sources_of
from rlinf_async.hosts.rlinf.view import RLinfView

Chain = tuple[str, ...]
"""The parts of a dotted key, as far as the sources tell them; () is the whole config."""
REPLACED_CLASSES = tuple(name.rpartition(".")[::2] for name in (*ROLE_OF_CLASS, *RUNNER_CLASSES))
"""RLinf's workers and runners that ours replace, each as its module and its name."""
WHOLE_CONFIGS: Mapping[str, Chain] = {"cfg": (), "config": ()}
"""Variables and attributes of `self` in those classes that hold a whole config."""
ENUM_PLACE, CHOICE_PLACE = "rlinf.envs:SupportedEnvType", "rlinf.envs:get_env_cls"
MODELS_FILE, BUILDER = "models/__init__.py", "get_model"
WORKERS = ("EnvWorker", "MultiStepRolloutWorker", "EmbodiedFSDPActor")
"""RLinf's workers of every run."""
WORKER_ATTRIBUTES: Mapping[str, Chain] = {"cfg": (), "_cfg": ("actor",)}
"""The sections of the config that attributes of a worker hold."""
FILLED_IN = (("rollout", "pipeline_stage_num"), ("actor", "fsdp_config"))
"""The number of shards, which a run writes into its config, and a block that `validate_cfg` completes."""
ENVIRONMENT_METHODS = ("__init__", "reset", "step")
SIMULATOR_ARGUMENTS = "init_params"
"""The section of an environment that its simulator gets as arguments."""
ANY_KEY, ANY_VALUE, IF_THERE = MARKS = ("*", "=", "?")
"""The last part of a chain, if it needs a block of keys; any value but null; or any value but null where the
key is there."""
READING_METHODS = frozenset({"get", "items", "keys", "pop", "values"})
"""Methods of a section, which are not its keys."""
RAISING_FUNCTIONS = frozenset({"float", "int", "len", "list", "range", "tuple", "OmegaConf.to_container"})
"""Functions that raise for null."""
MAX_CALL_DEPTH = 4
"""Depth of calls from method to method that are followed."""
UNSURE_NODES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Expressions whose parts may not run."""


@cache
def chains_here() -> frozenset[Chain]:
    """Return the chains that the replaced classes of the installed RLinf may read; none without RLinf."""
    return chains_of(sources_of("rlinf").root)


def chains_of(package: Path) -> frozenset[Chain]:
    """Return the chains that the replaced classes, with their bases in the same files, and the functions in
    these files may read, of the RLinf package in the folder `package`.
    """
    files = sorted({module.partition(".")[2].replace(".", "/") + ".py" for module, _ in REPLACED_CLASSES})
    nodes = [node for file in files for node in Sources(package).tree(file).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    scopes: list[list[ast.stmt]] = [[node for node in nodes if isinstance(node, FUNCTION_NODES)]]
    scopes += [list(_with_bases(name, classes)) for _, name in REPLACED_CLASSES]
    return frozenset().union(*(Reads({**WHOLE_CONFIGS}, may_lack=True).possible(scope) for scope in scopes))


def _with_bases(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield the class `name` among `classes`, and those that it extends."""
    if name in classes:
        yield classes[name]
        for base in classes[name].bases:
            yield from _with_bases(getattr(base, "id", ""), classes)


@cache
def filled_in() -> set[str]:
    """Return the keys that RLinf's `validate_cfg` writes into a config by itself, without the user."""
    return sources_of("rlinf").assigned("cfg", "config.py")


def readers(view: RLinfView) -> Iterator[tuple[str, Chain, Iterable[Chain]]]:
    """Yield the parts of the installed RLinf that read a config: their names, their sections, and the chains
    that they need of these.
    """
    sources = sources_of("rlinf")
    if not sources.is_here:
        return
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


def of_maniskill() -> frozenset[str]:
    """Return the arguments of ManiSkill's environments that have a default and cannot be null."""
    init = sources_of("mani_skill").methods("mani_skill.envs.sapien_env:BaseEnv").get("__init__")
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
    chains = Reads({**WORKER_ATTRIBUTES}, methods).certain("__init__", "init_worker")
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
                classes = [Reads(methods=sources.methods(place)) for place in places]
                needs = [each.certain(*ENVIRONMENT_METHODS) for each in classes]
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
                        return Reads(methods={BUILDER: builder}).certain(BUILDER)
    return frozenset()


@dataclass
class Reads:
    """Follows the parts of a config through variables and attributes of `self`; one object for one class."""

    attributes: dict[str, Chain] = field(default_factory=dict)
    """The chains that attributes of `self` hold."""
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    may_lack: bool = False
    """True if `a or b`, and reads of keys that may be absent, are followed, too."""
    set_by_code: set[Chain] = field(default_factory=set)
    """Chains that the code itself assigns, which a config may leave out."""
    depth: int = 0

    def possible(self, definitions: Iterable[ast.stmt]) -> set[Chain]:
        """Return the chains that functions may read, or a class and its bases, which share attributes."""
        chains: set[Chain] = set()
        scopes = [each for node in definitions for each in ast.walk(node) if isinstance(each, FUNCTION_NODES)]
        # Twice: a method may read an attribute that a later one sets.
        for scope in (*scopes, *scopes):
            names = {**WHOLE_CONFIGS}
            nodes = [node for node in ast.walk(scope) if isinstance(node, ast.expr | ast.stmt)]
            methods = {node.func for node in nodes if isinstance(node, ast.Call)}  # `cfg.env.get` is no key
            for node in sorted(nodes, key=lambda node: node.lineno):
                if isinstance(node, ast.Assign) and (held := self._chain(node.value, names)) is not None:
                    for target in node.targets:
                        self._hold(target, held, names)
                elif isinstance(node, ast.expr) and node not in methods:
                    chains |= {chain} if (chain := self._chain(node, names)) else set()
        return chains

    def certain(self, *names: str) -> frozenset[Chain]:
        """Return the chains of the first method's first parameter that methods need, one after the other.

        A key is needed if every path through the code reads it: at the top level of a method or of a method
        that it calls, or in both branches of an `if`.
        """
        found: set[Chain] = set()
        for name in names:
            if function := self.methods.get(name):
                config = _parameters(function)[:1] if name == names[0] else ()
                found |= self._body(function.body, dict.fromkeys(config, ()))
        return frozenset(found)

    def _chain(self, node: ast.AST | None, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain of an expression, with the chains that variables hold (`names`); None if it is no
        part of the config.
        """
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.attributes.get(name)
            case ast.Attribute(value=section, attr=key) if key not in READING_METHODS:
                return self._longer(section, key, names)
            case ast.Subscript(value=section, slice=ast.Constant(value=key)):
                return self._longer(section, key, names)
            case ast.BoolOp(values=[first, *_]) if self.may_lack:
                return self._chain(first, names)
        return self._longer(*_optional_read(node)[:2], names) if node and self.may_lack else None

    def _longer(self, section: ast.AST | None, key: object, names: Mapping[str, Chain]) -> Chain | None:
        """Return the chain of a dotted key in a section; None if `section` or `key` is not one."""
        chain = self._chain(section, names)
        return None if chain is None or not isinstance(key, str) else (*chain, *key.split("."))

    def _hold(self, target: ast.AST, chain: Chain | None, names: dict[str, Chain]) -> None:
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

    def _forget(self, block: ast.AST, names: dict[str, Chain]) -> None:
        """Forget the chains of variables that are assigned inside `block`, as the assignment may not run."""
        for node in ast.walk(block):
            if isinstance(getattr(node, "ctx", None), ast.Store):
                self._hold(node, None, names)

    def _body(self, body: Iterable[ast.stmt], names: dict[str, Chain]) -> set[Chain]:
        found: set[Chain] = set()
        for node in body:
            found |= self._needed(node, names)
            # After a branch that may return from the function, no read is certain.
            leaves = ast.walk(node) if isinstance(node, ast.If) else (node,)
            if any(isinstance(each, ast.Return | ast.Raise) for each in leaves):
                break
        return found

    def _needed(self, node: ast.AST, names: dict[str, Chain], mark: str = "") -> set[Chain]:
        """Return the chains that a statement or an expression reads for certain; note what it assigns.

        A chain that is the whole expression is returned also with the last part `mark`, unless that is "".
        """
        if isinstance(node, ast.expr) and (chain := self._chain(node, names)) is not None:
            return self._used(chain, mark)
        match node:
            case ast.BoolOp(values=[part, *_]) | ast.IfExp(test=part) | ast.Assert(test=part):
                return self._needed(part, names)
            # A returned function is called later: simulators are built so, in their own processes.
            case ast.Return(value=ast.Name(id=name)) if name in self.methods:
                return self._body(self.methods[name].body, {**names})
            case ast.With(body=body):
                return self._body(body, names)
            case ast.If(test=test, body=body, orelse=orelse):
                found, branches = self._needed(test, names), []
                for branch in (body, orelse):
                    branches.append(self._body(branch, {**names}))
                    self._forget(node, names)
                return found | (branches[0] & branches[1])
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                found, chain = self._needed(value, names), self._chain(value, names)
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                return found.union(*(self._assigned(target, chain, names) for target in targets))
            case ast.Expr() | ast.Return() | ast.expr() if not isinstance(node, UNSURE_NODES):
                inner = [self._needed(part, names, mark) for part, mark in _parts(node)]
                return self._called(node, names).union(*inner)
            case ast.FunctionDef(name=name):
                self.methods[name] = node
        self._forget(node, names)
        return set()

    def _used(self, chain: Chain, mark: str) -> set[Chain]:
        if not chain or any(chain[: len(given)] == given for given in self.set_by_code):
            return set()
        # Arguments of a simulator are passed on unchanged.
        last = mark or (ANY_VALUE if chain[0] == SIMULATOR_ARGUMENTS else "")
        return {chain, (*chain, last)} if last else {chain}

    def _assigned(self, target: ast.expr, chain: Chain | None, names: dict[str, Chain]) -> set[Chain]:
        """Note what `target` holds from here on; return the block that assigning to it needs."""
        self._hold(target, chain, names)
        if chain is not None or not (given := self._chain(target, names)):
            return set()
        self.set_by_code.add(given)
        return {(*given[:-1], ANY_KEY)} if given[1:] else set()

    def _called(self, call: ast.AST, names: Mapping[str, Chain]) -> set[Chain]:
        """Return the chains that a call needs: of a key with a default, and of a method's arguments."""
        section, key, default = _optional_read(call)
        if isinstance(default, ast.Constant) and default.value and default.value is not True:
            chain = self._longer(section, key, names)
            return {(*chain, IF_THERE)} if chain else set()
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                method = self.methods.get(name)
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name)):
                method = self.methods.get(f"{SUPER_PREFIX}{name}")
            case _:
                return set()
        if method is None or self.depth == MAX_CALL_DEPTH:
            return set()
        arguments = zip(_parameters(method), call.args, strict=False)
        passed = {name: self._chain(argument, names) for name, argument in arguments}
        self.depth += 1
        found = self._body(method.body, {name: chain for name, chain in passed.items() if chain is not None})
        self.depth -= 1
        return found


def _optional_read(node: ast.AST) -> tuple[ast.AST | None, object, ast.expr | None]:
    """Return the section, the key and the default of an expression that reads a key which may be absent:
    `"key" in section`, `section.get("key", default)`, `getattr(section, "key", default)`, or
    `OmegaConf.select(section, "key.of.it")`; None for each in another expression.
    """
    match node:
        case ast.Compare(left=ast.Constant(value=key), ops=[ast.In() | ast.NotIn()], comparators=[section]):
            return section, key, None
        case (
            ast.Call(ast.Attribute(value=section, attr="get"), [ast.Constant(value=key), *default])
            | ast.Call(ast.Name("getattr"), [section, ast.Constant(value=key), *default])
            | ast.Call(ast.Attribute(attr="select"), [section, ast.Constant(value=key), *default])
        ):
            return section, key, next(iter(default), None)
    return None, None, None


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the expressions in a node, of a call its arguments, each with the mark of what it needs: the node
    raises if that is null. `%` formats texts, too.
    """
    match node:
        case ast.Call(func=function):
            mark = ANY_VALUE if ast.unparse(function) in RAISING_FUNCTIONS else ""
            yield from ((part, mark) for part in node.args)
            yield from ((keyword.value, "" if keyword.arg else ANY_KEY) for keyword in node.keywords)
            if isinstance(function, ast.Attribute) and function.attr in READING_METHODS:
                yield function.value, ANY_KEY
        case ast.BinOp(op=ast.Mod()):
            yield from ((part, "") for part in (node.left, node.right))
        case ast.BinOp() | ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_]):
            yield from ((part, ANY_VALUE) for part in ast.iter_child_nodes(node))
        case _:
            yield from ((part, "") for part in ast.iter_child_nodes(node))


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]
