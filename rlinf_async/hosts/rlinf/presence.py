"""Checks that a config has the keys that RLinf needs, and that its models, files and loggers exist.

RLinf itself finds such a fault in its workers, after Ray has started, or in a driver that waits for them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlinf_async.core.config_keys import dotted, lookup, shortened
from rlinf_async.entry_points import MODELS_GROUP, names_of
from rlinf_async.hosts.judge.presence import (
    directory_reasons,
    environment_reasons,
    file_reasons,
    is_here,
    logger_package_reasons,
    logger_reasons,
)
from rlinf_async.hosts.judge.reasons import Reason, unknown
from rlinf_async.hosts.rlinf.keys import filled_in
from rlinf_async.hosts.rlinf.models import PACKAGE_OF_MODEL, model_types
from rlinf_async.hosts.rlinf.needs import (
    ANY_KEY,
    ANY_VALUE,
    IF_THERE,
    SIMULATOR_ARGUMENTS,
    WORKER_SECTIONS,
    of_environment,
    of_maniskill,
    of_model,
    of_worker,
)
from rlinf_async.hosts.rlinf.reads import Chain
from rlinf_async.hosts.rlinf.settings import evaluates
from rlinf_async.hosts.rlinf.sources import sources_of

SIMULATOR_PACKAGES = {
    "d4rl": "d4rl",
    "genesis": "genesis",
    "habitat": "habitat",
    "libero": "libero",
    "maniskill": "mani_skill",
    "metaworld": "metaworld",
    "roboverse": "metasim",
}
"""{env_type: package that RLinf's environment imports}, for environments that need a single package."""
SIMULATOR_EXTRAS = ("libero", "maniskill", "metaworld")
"""Simulators that an extra of this package installs."""
BACKENDS_KEY = "runner.logger.logger_backends"
RUN_DIR_KEY = "runner.logger.log_path"
LOGGER_PACKAGES = ("wandb", "swanlab")
"""Backends of RLinf's logger that need the package of their name."""
SYNCER_TYPES = ("bucket", "patch")
"""RLinf's weight syncers; each reads the block of its name."""
FILE_KEYS = ("runner.ckpt_path", "actor.model.model_path", "rollout.model.model_path")
"""Keys that name a file or folder, unless it is the name of a model on a hub."""
LAUNCH_READS: frozenset[Chain] = frozenset((name, "group_name") for name in ("actor", "env", "rollout"))
CRITIC_READS: frozenset[Chain] = frozenset({("use_critic_model",)})
"""The key of a block `critic` that RLinf's `validate_cfg` reads."""
OWN_READS: frozenset[Chain] = frozenset({("video_cfg", "save_video")})
"""The key of a section of environments that our env shards read."""
TASK_SIMULATORS = ("isaaclab", "maniskill")
"""Simulators that find a task by its `id`."""
SIM_CONFIG = "sim_config"
"""An argument of ManiSkill's environments: a block of numbers, none of them null."""


def name_reasons(cfg: Mapping[str, Any]) -> list[Reason]:
    """Return reasons for names in `cfg` (plain data) that neither this RLinf nor a package has, on any
    machine.
    """
    return [*_model(cfg), *_environments(cfg), *_loggers(cfg), *_weight_syncer(cfg)]


def presence_reasons(cfg: Mapping[str, Any]) -> list[Reason]:
    """Return reasons for names in `cfg` (plain data) that are missing on this machine.

    Packages and files are looked for where every process runs on this machine. Where nodes have files and
    Pythons of their own, this machine cannot tell.
    """
    backends = lookup(cfg, BACKENDS_KEY)
    missing = [*logger_package_reasons(BACKENDS_KEY, backends, LOGGER_PACKAGES, instead="tensorboard")]
    # The driver writes there, which runs here wherever its workers do.
    if isinstance(run_dir := lookup(cfg, RUN_DIR_KEY), str):
        missing += directory_reasons(run_dir, key=RUN_DIR_KEY)
    if on_this_machine(cfg):
        adapters = ("actor.model.lora_path",) if lookup(cfg, "actor.model.is_lora") else ()
        missing += [*_model_package(cfg), *_simulators(cfg), *file_reasons(cfg, (*FILE_KEYS, *adapters))]
    return missing


def on_this_machine(cfg: Mapping[str, Any]) -> bool:
    """Return True if every process of a run of `cfg` (plain data) is on one machine."""
    return (lookup(cfg, "cluster.num_nodes") or 1) == 1 and not lookup(cfg, "cluster.node_groups")


def _model(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    models = sorted(model_types())
    # A run that only evaluates makes the model of its rollout section.
    for section in ("actor", "rollout") if lookup(cfg, "runner.only_eval") else ("actor",):
        key = f"{section}.model.model_type"
        if (name := lookup(cfg, key)) not in models:
            yield unknown(key, name, models, f"a model of RLinf or of {MODELS_GROUP}")


def _model_package(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    name = str(lookup(cfg, "actor.model.model_type"))
    package = PACKAGE_OF_MODEL.get(name)
    if package is None or is_here(package) or name in names_of(MODELS_GROUP):
        return
    yield Reason(
        f"actor.model.model_type={name} needs the package {package}, which is not installed; activate the "
        f"environment that RLinf's install.sh makes for it"
    )


def _environments(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    for mode in ("train", "eval"):
        kind = lookup(cfg, f"env.{mode}.env_type")
        if lookup(cfg, f"env.{mode}") and not _is_env_type(kind):
            from rlinf_async.hosts.rlinf.borrowed import SupportedEnvType

            types = [known.value for known in SupportedEnvType]
            yield unknown(f"env.{mode}.env_type", kind, types, "an environment of RLinf")
    yield from environment_reasons(cfg)


def _is_env_type(kind: object) -> bool:
    """Return True if RLinf's own enum accepts a name, which need not be a member's name."""
    from rlinf_async.hosts.rlinf.borrowed import SupportedEnvType

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # RLinf says itself that a name is an old one, when it builds it
        try:
            SupportedEnvType(kind)
        except ValueError:
            return False
        except ImportError:  # newer ones ask a package of simulators for names that are no member's
            return True
    return True


def _simulators(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    if lookup(cfg, "env.train.env_class"):
        return  # with an `env_class`, `env_type` only decides how RLinf prepares actions
    kind = str(lookup(cfg, "env.train.env_type"))
    package = SIMULATOR_PACKAGES.get(kind)
    # With LIBERO_TYPE (pro, plus) RLinf's `libero/venv.py` imports another package than libero.
    if package is None or is_here(package) or (kind == "libero" and os.environ.get("LIBERO_TYPE")):
        return
    where = "docs/install.md" if kind in SIMULATOR_EXTRAS else "RLinf's documentation"
    yield Reason(
        f"env.train.env_type={kind} needs the package {package}, which is not installed; see {where}"
    )


def _loggers(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    from rlinf_async.hosts.rlinf.borrowed import MetricLogger

    names = list(MetricLogger.supported_logger)
    return logger_reasons(BACKENDS_KEY, lookup(cfg, BACKENDS_KEY), names, description="a logger of RLinf")


def _weight_syncer(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    block, key = lookup(cfg, "weight_syncer"), "weight_syncer.type"
    if not block:
        # 512 MiB is the size in RLinf's example configs.
        yield Reason(
            "the config has no weight_syncer, without which RLinf's workers end; add the block "
            "weight_syncer: {type: bucket, bucket: {bucket_size: 536870912}}",
            "'+weight_syncer={type: bucket, bucket: {bucket_size: 536870912}}'",
        )
        return
    kind = block.get("type")
    if kind not in SYNCER_TYPES:
        yield unknown(key, kind, SYNCER_TYPES, "a weight syncer of RLinf")
    elif not isinstance(block.get(kind), Mapping):
        yield Reason(f"{key}={kind} needs the block weight_syncer.{kind}", f"+weight_syncer.{kind}={{}}")


def needed_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each key that RLinf needs and that is absent from `cfg` (plain data), or is in a
    block that is null.
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
    """Return the first key of a chain in `section`, the block at `key`, with a fault, and the words for that
    fault; both may be "".
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
