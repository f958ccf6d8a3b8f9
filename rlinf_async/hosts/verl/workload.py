"""Reads the facts that all runs of one veRL config share, from the config alone."""

from __future__ import annotations

from omegaconf import DictConfig

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.host import Workload
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, section, whole

OFF_NOTE = (
    "off: the loop of this package with every level off, around veRL's own update; veRL has no loop of its "
    "own for policies that act."
)


def workload(cfg: DictConfig) -> Workload:
    """Return the workload of a composed config.

    Raises:
        ValueError: the config lacks a key that a run needs.
    """
    values = plain(cfg)
    train = section(values, "train")
    seeds = {
        f"{ACTOR_SECTION}.data_loader_seed": int(lookup(values, f"{ACTOR_SECTION}.data_loader_seed") or 0)
    }
    if lookup(values, "env.train.seed") is not None:
        seeds["env.train.seed"] = int(train["seed"])
    steps = "trainer.total_training_steps"
    # With `auto` a run would resume from another run's checkpoint.
    resumes = lookup(values, "trainer.resume_mode") == "auto"
    return Workload(
        run_dir="vla.run_dir",
        steps=(steps, whole(values, steps)),
        seeds=seeds,
        overrides=("trainer.resume_mode=disable",) if resumes else (),
        off=OFF_NOTE,
    )
