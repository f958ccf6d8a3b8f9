"""Tells configs of veRL from others, and the trainers that they name from each other.

Nothing here imports veRL. Programs that are near veRL and that no host serves are known by their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.config.checked import checked_config
from rlinf_async.core.config_keys import lookup, nearest
from rlinf_async.hosts.async_block import read_block

CONFIG_SECTIONS = ("trainer", "actor_rollout_ref")
"""Sections of every config of veRL's."""
TRAINER_MODE = "vla_async"
"""The name of our trainer in veRL's registry."""
TRAINER_MODE_KEY = "trainer.v1.trainer_mode"
VERL_TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""The names of veRL's own trainers there."""

VERL_VLA_SEARCH_PATH = "pkg://verl_vla."
"""The beginning of the place where configs of verl-vla's examples look for the others."""
VERL_VLA_SENTENCE = (
    "this is a config of verl-vla (vvla-train-sac, -sft, -recap and its other commands), whose training is "
    "off-policy or supervised, and which no host here serves: its own command runs it, without an async "
    "block; PPO and GRPO in its environments need a config of trainer.v1.trainer_mode=vla_async, such as "
    "verl_vla_libero_ppo; docs/verl.md says what runs here"
)
EXPERIMENT_SENTENCE = (
    "this is a config of veRL's experiment with VLAs (recipe.vla, verl.experimental.vla), which veRL has "
    "taken out: it ran last at tag v0.7.0, and its successor is verl-vla, which has no on-policy training; "
    "write a config of trainer.v1.trainer_mode=vla_async; docs/verl.md says what runs here"
)


def is_verls(config: object) -> bool:
    """Return True if `config` is one of veRL's, for any of its trainers."""
    return isinstance(config, DictConfig) and all(
        isinstance(config.get(name), DictConfig) for name in CONFIG_SECTIONS
    )


def relative(config: object) -> str:
    """Return a sentence on the program that `config` is for, and its remedy; empty for other configs."""
    if not isinstance(config, DictConfig) or _select(config, TRAINER_MODE_KEY) == TRAINER_MODE:
        return ""
    if _has_block(config, "cluster.env", "cluster.actor_rollout_ref"):
        return VERL_VLA_SENTENCE
    if VERL_VLA_SEARCH_PATH in str(OmegaConf.select(config, "hydra.searchpath")):
        return VERL_VLA_SENTENCE
    if _has_block(config, "env.disagg_sim", "env.rollout", "env.actor"):
        return EXPERIMENT_SENTENCE
    return ""


def another_mode(config: Mapping[str, Any] | DictConfig, *, needs_ours: bool = False) -> str:
    """Return the reason why a veRL config needs another trainer than it names; empty if it does not.

    Our trainer is needed for an `async` block with a level on, and for our own commands (`needs_ours`).
    """
    mode = lookup(config, TRAINER_MODE_KEY)
    if mode == TRAINER_MODE:
        return ""
    setting = f"trainer.v1.trainer_mode={mode!r}"
    # Before the block is read: a mistyped mode is the cause of a block that no code reads.
    if mode not in VERL_TRAINER_MODES and nearest(mode, [TRAINER_MODE], cutoff=0.8):
        return f"{setting} is no trainer of veRL; did you mean {TRAINER_MODE!r}?"
    if checked_config(read_block(config)).active:
        return (
            f"{setting} reads no async block; use trainer.v1.trainer_mode={TRAINER_MODE}, or async.mode=off"
        )
    if needs_ours:
        return (
            f"{setting} is veRL's own loop, which its own commands start; use "
            f"trainer.v1.trainer_mode={TRAINER_MODE}"
        )
    return ""


def _has_block(config: DictConfig, *keys: str) -> bool:
    return any(isinstance(_select(config, key), DictConfig) for key in keys)


def _select(config: DictConfig, key: str) -> object:
    # Configs of other programs may hold interpolations that nothing resolves here.
    return OmegaConf.select(config, key, throw_on_resolution_failure=False)
