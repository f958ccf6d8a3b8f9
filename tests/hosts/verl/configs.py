"""Packaged configs for veRL, composed as the command line does."""

from __future__ import annotations

from omegaconf import DictConfig

from rlinf_async.compose import compose_config


def composed(*overrides: str, name: str = "verl_metaworld_ppo_mlp") -> DictConfig:
    return compose_config(name, overrides)
