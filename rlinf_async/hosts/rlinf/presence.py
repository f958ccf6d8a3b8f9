"""All reasons why a config cannot run under RLinf; here those about models, files and loggers.

RLinf itself finds such a fault in its workers, after Ray has started, or in a driver that waits for them.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf

from rlinf_async.entry_points import MODELS_GROUP, names_of
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.judge import presence
from rlinf_async.hosts.judge.reasons import Reason, refuse, unknown_reason
from rlinf_async.hosts.kit.policy_size import is_declared
from rlinf_async.hosts.rlinf.config import is_active, machines
from rlinf_async.hosts.rlinf.keys import TABLE, needed_key_reasons, unserved_key_reasons
from rlinf_async.hosts.rlinf.models import PACKAGE_OF_MODEL, model_types
from rlinf_async.hosts.rlinf.placement import world_sizes
from rlinf_async.hosts.rlinf.reasons import other_algorithm_reasons, setting_reasons
from rlinf_async.hosts.rlinf.tree import supported_rlinf
from rlinf_async.hosts.rlinf.view import RLinfView

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
LOGGER_PACKAGES = {"wandb": "wandb", "swanlab": "swanlab"}
"""{backend of RLinf's logger: package that it needs}."""


def checked(cfg: DictConfig, *, complete: bool = True) -> dict[str, Any]:
    """Return `cfg` as plain data. If it is to be `complete`, or a level is on, no required key is missing.

    Raises:
        ValueError: a value is not of its key's kind; or a level is on that this RLinf, or the algorithm, does
            not support.
    """
    values = plain(cfg)
    # First: the next lines read keys of sections, which may not be blocks.
    refuse(TABLE.block_reasons(values))
    refuse(list(TABLE.unset_reasons(OmegaConf.missing_keys(cfg))))
    if active := is_active(cfg):
        supported_rlinf()
        refuse(list(other_algorithm_reasons(RLinfView.of(values))))
    refuse(TABLE.reasons(values, complete=complete or active))
    return TABLE.without_nulls(values)


def config_reasons(cfg: Mapping[str, Any], *, active: bool, here: bool = True) -> list[Reason]:
    """Return the reasons, apart from its sizes, why `cfg` (a result of `checked`) cannot run; `active` if a
    level is on, `here` if it is to begin on this machine, which may lack packages or files.
    """
    view = RLinfView.of(cfg)
    return [
        *name_reasons(view),
        *(presence_reasons(view) if here else ()),
        *setting_reasons(view),
        *(unserved_key_reasons(cfg) if active else ()),
        *(presence.model_reasons(view.model, key="actor.model") if is_declared(view.model) else ()),
        *needed_key_reasons(view),
    ]


def check_by_rlinf(cfg: DictConfig) -> None:
    """Check a copy of a config with RLinf's reader of its section `cluster`, and with `validate_cfg`, which
    gets our count of the processes: to count them itself it starts Ray, even for a config that it refuses.

    Raises:
        ValueError: RLinf refuses the config.
    """
    from rlinf_async.hosts.rlinf.borrowed import ClusterConfig, validate_cfg

    names, values = validate_cfg.__globals__, plain(cfg)

    class Placement:
        def __init__(self, *_: Any) -> None:
            self._sizes = world_sizes(values["cluster"], machines(cfg))

        def get_world_size(self, component: str) -> int:
            return self._sizes[component]

    stand_ins = {"Cluster": lambda *_, **__: None, "HybridComponentPlacement": Placement}
    if not names.keys() >= stand_ins.keys():
        return  # a newer RLinf counts processes in another place
    # Its warnings are printed when the run calls `validate_cfg` itself.
    stand_ins["logging"] = logging.Logger("silent", logging.CRITICAL)
    with patch.dict(names, stand_ins), presence.own_check("RLinf"):
        ClusterConfig.from_dict_cfg(copy.deepcopy(cfg.cluster))
        validate_cfg(copy.deepcopy(cfg))


def name_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield reasons for names that neither this RLinf nor a package has."""
    from rlinf_async.hosts.rlinf.borrowed import MetricLogger, SupportedEnvType

    models, types = sorted(model_types()), [known.value for known in SupportedEnvType]
    named = {"actor": view.model_type}
    if view.only_eval:  # such a run makes the model of its rollout section
        named["rollout"] = view.rollout_model_type
    for section, name in named.items():
        if name not in models:
            known = f"a model of RLinf or of {MODELS_GROUP}"
            yield unknown_reason(f"{section}.model.model_type", name, models, known)
    sections = {"env.train": view.train, "env.eval": view.evaluation}
    for key, block in sections.items():
        if block and (kind := block.get("env_type")) is None:
            yield Reason(f"{key}.env_type is missing; set it to one of {', '.join(types)}")
        elif block and not _is_env_type(kind):
            yield unknown_reason(f"{key}.env_type", kind, types, "an environment of RLinf")
    yield from presence.environment_reasons(sections, {"actor": {"model": view.model}})
    for name in presence.names_in(view.loggers):
        if name not in (loggers := list(MetricLogger.supported_logger)):
            yield unknown_reason(BACKENDS_KEY, name, loggers, "a logger of RLinf")


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


def presence_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield reasons for names that are missing on this machine. Packages and files are looked for where every
    process runs on it: it cannot tell where nodes have files and Pythons of their own.
    """
    yield from presence.package_reasons(BACKENDS_KEY, view.loggers, LOGGER_PACKAGES, instead="[tensorboard]")
    # The driver writes there, which runs here wherever its workers do.
    yield from presence.folder_reasons(view.cfg, TABLE)
    if view.nodes == 1 and not view.node_groups:
        yield from _package_reasons(view)
        adapters = ("actor.model.lora_path",) if view.has_adapters else ()
        yield from presence.file_reasons(view.cfg, TABLE, "rollout.expert_model.model_path", *adapters)


def _package_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason for the model, and the simulator, if RLinf's package for it is missing."""
    if view.model_type not in names_of(MODELS_GROUP):
        remedy = "activate the environment that RLinf's install.sh makes for it"
        yield from presence.package_reasons(
            "actor.model.model_type", view.model_type, PACKAGE_OF_MODEL, remedy
        )
    kind = view.train.get("env_type")
    # With an `env_class`, `env_type` only decides how RLinf prepares actions. With LIBERO_TYPE (pro, plus)
    # RLinf's `libero/venv.py` imports another package than libero.
    if not (view.train.get("env_class") or (kind == "libero" and os.environ.get("LIBERO_TYPE"))):
        remedy = "see docs/install.md" if kind in SIMULATOR_EXTRAS else "see RLinf's documentation"
        yield from presence.package_reasons("env.train.env_type", kind, SIMULATOR_PACKAGES, remedy)
