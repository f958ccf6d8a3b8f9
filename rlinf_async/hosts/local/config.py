"""A config of the local host, read and checked. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from operator import attrgetter

from omegaconf import DictConfig, OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.async_block import plain, read_block
from rlinf_async.hosts.kit.models import MODELS_GROUP, unbuildable
from rlinf_async.hosts.local.keys import TABLE, malformed, unread
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.presence import unwritable
from rlinf_async.hosts.reasons import Reason, refuse, unknown
from rlinf_async.hosts.tasks import cannot_take_on, settled

ENVS_GROUP = "rlinf_async.envs"
UNSERVED_KEYS = {
    "advanced.stall_s": "nobody outside of the process watches it",
    "survive.process_restarts": "there is one process, and the run ends with it",
    "advanced.silent_s": "there is one process, and nobody asks it for an answer",
    "advanced.keep_checkpoints": "the policy is saved once, after the last step",
}
"""Keys of the `async` block that mean nothing where all loops are in one process."""


def settings_of(cfg: DictConfig) -> LocalSettings:
    """The settings of a config of this host.

    Raises:
        ValueError: a key that nothing reads or that is not served, a value that is none of its kind, or
            settings that do not fit together.
    """
    values = plain(cfg)
    refuse(TABLE.misshapen(values))
    refuse([*malformed(values), *unread(values)])
    asynchrony = AsyncConfig.from_mapping(read_block(values))
    refuse(list(unserved(asynchrony)))
    asynchrony = settled(asynchrony, values["env"])
    return LocalSettings(asynchrony=asynchrony, **(values.get("settings") or {}))


def unserved(asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Every key that asks for what there is not here. None is refused that says what is done anyway."""
    usual = AsyncConfig()
    for key, why in UNSERVED_KEYS.items():
        value = attrgetter(key)(asynchrony)
        if value not in (attrgetter(key)(usual), 0):
            yield Reason(
                f"async.{key}={value!r} is not served by the local host: {why}; leave it out",
                f"~async.{key}",
            )


def checked(cfg: DictConfig) -> LocalSettings:
    """The settings of a run that can begin on this machine.

    Raises:
        ValueError: as of `settings_of`; or what the config names is not here.
    """
    settings = settings_of(cfg)
    check_declared(cfg)
    values = plain(cfg)
    refuse(
        [
            *unwritable(str(cfg.run_dir), key="run_dir"),
            *unbuildable(values["model"], key="model"),
            *cannot_take_on(values["env"], settings.asynchrony, key="env"),
        ]
    )
    return settings


def check_declared(cfg: DictConfig) -> None:
    """Check that packages declare the classes that a config names, importing none of them.

    Raises:
        ValueError: a class is not named or not provided, or the environments are to reset themselves.
    """
    reasons = []
    for section, key, group in (("env", "env_class", ENVS_GROUP), ("model", "model_type", MODELS_GROUP)):
        name, names = named(cfg, section, key), sorted(entry_points(group=group).names)
        if name not in names:
            reasons.append(unknown(f"{section}.{key}", name, names, f"an entry point of {group}"))
    if cfg.env.get("auto_reset"):
        reasons.append(
            Reason(
                "env.auto_reset=true: a rollout of the local host begins with a reset; set it to false",
                "env.auto_reset=false",
            )
        )
    refuse(reasons)


def named(cfg: DictConfig, section: str, key: str) -> str:
    name = OmegaConf.select(cfg, f"{section}.{key}")
    if not name:
        raise ValueError(
            f"a config of the local host has no {section}.{key}: it names its environments by env.env_class "
            "and its policy by model.model_type, as packages declare them (docs/extending.md)"
        )
    return str(name)
