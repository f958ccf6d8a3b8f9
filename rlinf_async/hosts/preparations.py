"""Preparations before a run: entry points of `rlinf_async.preparations`."""

from __future__ import annotations

from importlib.metadata import entry_points

from omegaconf import DictConfig, OmegaConf

PREPARATIONS_GROUP = "rlinf_async.preparations"


def make_ready(cfg: DictConfig) -> None:
    """Call the preparations that `cfg` asks for, each with `cfg`, which it may fill in.

    One is asked for if its name is a block of the config or the training environment's `env_type`, and its
    module is imported only then.
    """
    for entry in entry_points(group=PREPARATIONS_GROUP):
        if cfg.get(entry.name) is not None or OmegaConf.select(cfg, "env.train.env_type") == entry.name:
            entry.load()(cfg)
