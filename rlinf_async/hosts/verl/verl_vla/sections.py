"""The `env` sections for verl-vla's simulators, with verl-vla's keys: their checks and their use."""

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
SIMULATOR_CLASSES = {"libero": "verl_vla.envs.libero.libero_env:LiberoEnv"}
"""{simulator_type: class}, for the simulators that were run with this host."""
UNTRIED_SIMULATORS = ("arena", "isaac", "lerobot", "piper")
"""verl-vla's other simulators."""
KEYS_OF_SECTION = {"max_episode_steps": "max_episode_steps", "seed": "seed"}
"""{key of a simulator's block: key of the `env` section that replaces it}."""


def wrong(section: Mapping[str, Any], *, key: str, model: object) -> Iterator[Reason]:
    """Yield the reasons why verl-vla's environments cannot be built from `section` at `key`, for any `model`.

    Imports verl-vla's config of the simulator, and with it veRL, which takes seconds.
    """
    if find_spec("verl_vla") is None:
        yield Reason(f"{key}.env_class=verl_vla needs verl-vla; install it: {INSTALL_COMMAND}")
        return
    name = section.get("simulator_type")
    if name not in SIMULATOR_CLASSES:
        is_verl_vlas = name in UNTRIED_SIMULATORS
        why = "has not been run under this host" if is_verl_vlas else "is no simulator of verl-vla"
        yield Reason(
            f"{key}.simulator_type={name} {why}; use {', '.join(SIMULATOR_CLASSES)}",
            f"{key}.simulator_type={next(iter(SIMULATOR_CLASSES))}",
        )
        return
    block = section.get(name) or {}
    if not isinstance(block, Mapping):
        yield Reason(f"{key}.{name}={block!r} must be a block with keys of verl-vla's {name} config")
        return
    known = {field.name for field in fields(_simulator(name))}
    for each in block:
        place = f"{key}.{name}.{each}"
        if each in KEYS_OF_SECTION:
            own_key = f"{key}.{KEYS_OF_SECTION[each]}"
            yield Reason(f"{place}: {own_key} has this setting; remove {place}", f"~{place}")
        elif each not in known:
            yield Reason(f"verl-vla does not read {place}; remove it{did_you_mean(each, known)}", f"~{place}")


def worker_config(section: Mapping[str, Any], num_envs: int) -> Any:
    """Return verl-vla's config of an env worker with `num_envs` simulators of `section`.

    Its auto-reset, recording and teleoperation are off, as the host does such work.
    """
    name = str(section["simulator_type"])
    config = import_module("verl_vla.workers.env.config")
    own = {name: section[own_key] for name, own_key in KEYS_OF_SECTION.items()}
    simulator = _simulator(name)(**{**(section.get(name) or {}), **own})
    return config.EnvWorkerConfig(
        num_envs=num_envs,
        simulator=config.SimulatorConfig(simulator_type=name, **{name: simulator}),
        recorder=config.RecorderConfig(enable=False),
        teleop=config.TeleopConfig(enable=False),
    )


def _simulator(name: str) -> Any:
    """Return verl-vla's config class of the simulator's block."""
    get_ready()
    return type(getattr(import_module("verl_vla.workers.env.config").SimulatorConfig(), name))
