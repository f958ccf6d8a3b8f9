"""Packaged configs for veRL, composed as the command line does.

The defaults are composed once for all tests of a process, and Hydra's own code applies overrides to a copy.
An override that chooses a file of a group takes part in composing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from rlinf_async.compose import compose_config


def composed(*overrides: str, name: str = "verl_metaworld_ppo_mlp") -> DictConfig:
    if not all("." in override.partition("=")[0] for override in overrides):
        return compose_config(name, overrides)
    return overridden(_composed_once(name), [_lenient(override) for override in overrides])


def overridden(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A copy of `config` with values overridden as Hydra does."""
    changed = copy.deepcopy(config)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    ConfigLoaderImpl._apply_overrides_to_config(parsed, changed)
    return changed


@cache
def _composed_once(name: str) -> DictConfig:
    return compose_config(name, [])


def _lenient(override: str) -> str:
    """As the command line has it: `async.mode=full` with and without a `+`."""
    return f"++{override.lstrip('+')}" if override.lstrip("+").startswith("async.") else override
