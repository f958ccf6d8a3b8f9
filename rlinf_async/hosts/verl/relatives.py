"""Configs of programs that are near veRL and that no host serves, known by their keys."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.verl.block import TRAINER_MODE

VERL_VLAS_CONFIGS = "pkg://verl_vla."
"""How the place begins at which configs of verl-vla's examples look for the others."""
READ_ON = "docs/verl.md says what runs here"
VERL_VLA = (
    "this is a config of verl-vla (vvla-train-sac, -sft, -recap and its other commands), whose training is "
    "off-policy or supervised, and which no host here serves: its own command runs it, without an async "
    "block; PPO and GRPO in its environments need a config of trainer.v1.trainer_mode=vla_async, such as "
    f"verl_vla_libero_ppo; {READ_ON}"
)
EXPERIMENT = (
    "this is a config of veRL's experiment with VLAs (recipe.vla, verl.experimental.vla), which veRL has "
    "taken out: it ran last at tag v0.7.0, and its successor is verl-vla, which has no on-policy training; "
    f"write a config of trainer.v1.trainer_mode=vla_async; {READ_ON}"
)


def relative(config: object) -> str:
    """Return what `config` is and where to go with it; empty if it is of no such program."""
    if not isinstance(config, DictConfig):
        return ""
    if OmegaConf.select(config, "trainer.v1.trainer_mode", throw_on_resolution_failure=False) == TRAINER_MODE:
        return ""
    if any(_is_block(config, f"cluster.{name}") for name in ("env", "actor_rollout_ref")):
        return VERL_VLA
    if VERL_VLAS_CONFIGS in str(OmegaConf.select(config, "hydra.searchpath")):
        return VERL_VLA
    if any(_is_block(config, f"env.{name}") for name in ("disagg_sim", "rollout", "actor")):
        return EXPERIMENT
    return ""


def _is_block(config: DictConfig, key: str) -> bool:
    value: Any = OmegaConf.select(config, key, throw_on_resolution_failure=False)
    return isinstance(value, DictConfig)
