"""A config's `warm_start` block: the starting policy is made before the run and filled in."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from rlinf_async.warm_start import WarmStart, warm_start


def fill_in(cfg: DictConfig, console: Console | None = None) -> None:
    """Clone the starting policy that `cfg.warm_start` describes, unless a checkpoint is given.

    Sets `runner.ckpt_path` and the observation statistics under which the clone was made. Clones are
    kept beside the run directory and found again by their settings.
    """
    block = cfg.get("warm_start")
    if block is None or cfg.runner.get("ckpt_path"):
        return
    console = console or Console(highlight=False)
    settings = WarmStart(**OmegaConf.to_container(block, resolve=True))  # type: ignore[arg-type]
    console.print(f"warm start: cloning the scripted expert of {settings.task_name}, below a minute ...")
    start = warm_start(settings, Path(cfg.runner.logger.log_path).absolute().parent / "warm_starts")
    console.print(f"warm start: the clone solves {start.success:.0%} of its episodes ({start.policy_path})")
    with open_dict(cfg):
        cfg.runner.ckpt_path = str(start.policy_path)
        for part in ("train", "eval"):
            cfg.env[part].obs_stats = str(start.obs_stats_path)
