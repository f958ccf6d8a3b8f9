"""The `env` sections for verl-vla's simulators, in verl-vla's words: what they say, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rlinf_async.core.config_keys import did_you_mean
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.verl.installation import get_ready

INSTALL_COMMAND = "pip install --no-deps git+https://github.com/verl-project/verl-vla"
CLASSES = {"libero": "verl_vla.envs.libero.libero_env:LiberoEnv"}
"""By `simulator_type`: those that have been run here."""
NOT_RUN = ("arena", "isaac", "lerobot", "piper")
"""Others of verl-vla."""
OURS = {"max_episode_steps": "max_episode_steps", "seed": "seed"}
"""Keys of a simulator's block that the section itself has, by its names for them."""


def wrong(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """Why verl-vla's environments cannot be built of `section`, which stands at `key`.

    Imports verl-vla's config of the simulator, and with it veRL: seconds.
    """
    if find_spec("verl_vla") is None:
        yield Reason(f"{key}.env_class=verl_vla needs verl-vla; install it: {INSTALL_COMMAND}")
        return
    name = section.get("simulator_type")
    if name not in CLASSES:
        why = "has not been run under this host" if name in NOT_RUN else "is no simulator of verl-vla"
        yield Reason(
            f"{key}.simulator_type={name} {why}; use {', '.join(CLASSES)}",
            f"{key}.simulator_type={next(iter(CLASSES))}",
        )
        return
    block = section.get(name) or {}
    if not isinstance(block, Mapping):
        yield Reason(f"{key}.{name}={block!r} must be a block with keys of verl-vla's {name} config")
        return
    known = {field.name for field in fields(_simulator(name))}
    for each in block:
        place = f"{key}.{name}.{each}"
        if each in OURS:
            yield Reason(f"{place}: {key}.{OURS[each]} says it; remove {place}", f"~{place}")
        elif each not in known:
            yield Reason(f"verl-vla does not read {place}; remove it{did_you_mean(each, known)}", f"~{place}")


def worker_config(section: Mapping[str, Any], num_envs: int) -> Any:
    """verl-vla's config of an env worker with `num_envs` simulators of `section`.

    Nothing resets, records or steers by itself: that is the host's.
    """
    name = str(section["simulator_type"])
    config = import_module("verl_vla.workers.env.config")
    own = {ours: section[theirs] for ours, theirs in OURS.items()}
    simulator = _simulator(name)(**{**(section.get(name) or {}), **own})
    return config.EnvWorkerConfig(
        num_envs=num_envs,
        simulator=config.SimulatorConfig(simulator_type=name, **{name: simulator}),
        recorder=config.RecorderConfig(enable=False),
        teleop=config.TeleopConfig(enable=False),
    )


def _simulator(name: str) -> Any:
    """verl-vla's class of the simulator's block."""
    get_ready()
    return type(getattr(import_module("verl_vla.workers.env.config").SimulatorConfig(), name))
