"""A config's `warm_start` block: make the starting policy before the run, and set its paths in the config."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from rlinf_async.core.config_keys import did_you_mean, shortened
from rlinf_async.hosts.judge.table import BLOCK_KIND, WHOLE_KIND, kind_of_default
from rlinf_async.lab.demo.run_dir import run_dir
from rlinf_async.lab.demo.warm_start_settings import WarmStart

POLICY_KEY = "runner.ckpt_path"
"""The key for the path of the starting state dict, if the block has no `policy_key`."""


def fill_in(cfg: DictConfig) -> None:
    """Clone the starting policy that `cfg.warm_start` describes, unless a checkpoint is given.

    Sets the key that the block's `policy_key` names, and in `env.train` and `env.eval` the observation
    statistics of the clone. Cloned policies are stored next to the run directory, by their settings; a
    checkout of this repository holds those of the demos.
    """
    if (found := _settings_of(cfg)) is None:
        return
    from rlinf_async.lab.demo.warm_start import place, warm_start  # imports torch and Meta-World

    settings, policy_key = found
    console = Console(highlight=False)
    starts = run_dir(cfg).parent / "warm_starts"
    if not place(settings, starts).exists():
        console.print(
            f"warm start: cloning the scripted expert of {settings.task_name}, below a minute "
            f"(a clone of the repository of rlinf-async holds those of the demos) ...",
            soft_wrap=True,
        )
    start = warm_start(settings, starts)
    console.print(
        f"warm start: the clone solves {start.success:.0%} of its episodes ({start.policy_path})",
        soft_wrap=True,
    )
    with open_dict(cfg):
        OmegaConf.update(cfg, policy_key, str(start.policy_path))
        for mode in ("train", "eval"):
            if cfg.env.get(mode) is not None:
                cfg.env[mode].obs_stats = str(start.obs_stats_path)


def check(cfg: DictConfig) -> None:
    """Check the block of `cfg` as `fill_in` does, which would begin to clone.

    Raises:
        ValueError: as by `fill_in`.
    """
    _settings_of(cfg)


fill_in.check = check  # type: ignore[attr-defined]


def _settings_of(cfg: DictConfig) -> tuple[WarmStart, str] | None:
    """Return the settings of the block and the key of the policy's path; None if nothing is to be cloned."""
    if cfg.get("warm_start") is None:
        return None
    block = _checked(cfg.warm_start)
    policy_key = block.pop("policy_key", POLICY_KEY)
    return None if OmegaConf.select(cfg, policy_key) else (WarmStart(**block), policy_key)


def _checked(section: Any) -> dict[str, Any]:
    """Return the block as plain data.

    Raises:
        ValueError: it is no block, or a key is unknown or has a value of another kind.
    """
    if not OmegaConf.is_dict(section):
        raise ValueError(
            f"warm_start={shortened(section)} must be a block of keys; take it out by ~warm_start"
        )
    block: dict[str, Any] = OmegaConf.to_container(section, resolve=True)  # type: ignore[assignment]
    defaults = {"policy_key": POLICY_KEY, **{field.name: field.default for field in fields(WarmStart)}}
    for name, value in block.items():
        if name not in defaults:
            hint = did_you_mean(name, defaults) or f"; there is {', '.join(defaults)}"
            raise ValueError(f"unknown key warm_start.{name}{hint}")
        default = defaults[name]
        kind = (
            BLOCK_KIND
            if default is None
            else WHOLE_KIND
            if type(default) is int
            else kind_of_default(default)
        )
        if (value is not None or default is not None) and not kind.accepts(value):
            raise ValueError(f"warm_start.{name}={shortened(value)} must be {kind.words}")
    return block
