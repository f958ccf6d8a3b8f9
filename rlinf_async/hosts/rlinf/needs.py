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
from rlinf_async.hosts.rlinf.keys import filled_in
from rlinf_async.hosts.rlinf.reads import ANY_KEY, ANY_VALUE, IF_THERE, SIMULATOR_ARGUMENTS, Chain, Needs
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
ENVIRONMENT_METHODS = ("__init__", "reset", "step")
TASK_SIMULATORS = ("isaaclab", "maniskill")
"""Simulators that find a task by its `id`."""
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
    chains = Needs(methods, WORKER_SECTIONS[name]).of("__init__", "init_worker")
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
            needs = [Needs(sources.methods(place)).of(*ENVIRONMENT_METHODS) for place in places]
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
    return Needs({BUILDER: builder}).of(BUILDER) if isinstance(builder, ast.FunctionDef) else frozenset()
