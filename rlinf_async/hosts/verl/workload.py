"""Reads the facts that all runs of one veRL config share, from the config alone."""

from __future__ import annotations

from omegaconf import DictConfig

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.host import Workload
from rlinf_async.hosts.verl.settings import section, whole
from rlinf_async.hosts.verl.view import ACTOR_SECTION, VerlView

OFF_NOTE = (
    "off: the loop of this package with every level off, around veRL's own update; veRL has no loop of its "
    "own for policies that act."
)


def workload(cfg: DictConfig) -> Workload:
    """Return the workload of a composed config.

    Raises:
        ValueError: the config lacks a key that a run needs.
    """
    view = VerlView.of(plain(cfg))
    train = section(view, "train")
    seeds = {f"{ACTOR_SECTION}.data_loader_seed": int(view.seed)}
    if view.env_seed is not None:
        seeds["env.train.seed"] = int(train["seed"])
    steps = "trainer.total_training_steps"
    # With `auto` a run would resume from another run's checkpoint.
    return Workload(
        run_dir="vla.run_dir",
        steps=(steps, whole(view.steps, steps)),
        seeds=seeds,
        overrides=("trainer.resume_mode=disable",) if view.resume_mode == "auto" else (),
        off=OFF_NOTE,
    )
