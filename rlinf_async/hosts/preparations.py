"""Preparations before a run: entry points of `rlinf_async.preparations`."""

from __future__ import annotations

from importlib.metadata import entry_points

from omegaconf import DictConfig, OmegaConf

PREPARATIONS_GROUP = "rlinf_async.preparations"
SIMULATOR_KEYS = ("env_type", "simulator_type")
"""RLinf's and verl-vla's keys for a simulator."""


def make_ready(cfg: DictConfig) -> None:
    """Call the preparations that `cfg` asks for, each with `cfg`, which it may fill in.

    One is asked for if its name is a block of the config or that of the training environments' simulator, and
    its module is imported only then.
    """
    simulators = {OmegaConf.select(cfg, f"env.train.{key}") for key in SIMULATOR_KEYS}
    for entry in entry_points(group=PREPARATIONS_GROUP):
        if cfg.get(entry.name) is not None or entry.name in simulators:
            entry.load()(cfg)
