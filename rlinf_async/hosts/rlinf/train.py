"""Starts a training run, in the same way as RLinf's entry scripts for embodied agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.rlinf.borrowed import (
    Cluster,
    EmbodiedFSDPActor,
    EmbodiedRunner,
    EnvWorker,
    HybridComponentPlacement,
    MultiStepRolloutWorker,
    validate_cfg,
)
from rlinf_async.hosts.rlinf.checkpoints import set_aside
from rlinf_async.hosts.rlinf.config import asks_for_levels
from rlinf_async.hosts.rlinf.hooks import PROCESS_HOOKS, load_in_workers
from rlinf_async.hosts.rlinf.losses import NFT_LOSS
from rlinf_async.hosts.rlinf.shared import SHARED
from rlinf_async.hosts.rlinf.stock import ObservedRunner
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.hosts.rlinf.worker_groups import hear_worker_groups
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.ending import recorded
from rlinf_async.ray_runtime.cluster.ray_processes import leaving_nothing_of_a_dead_ray
from rlinf_async.ray_runtime.cluster.starting import starting_ray
from rlinf_async.ray_runtime.driver.endings import ray_ending_of
from rlinf_async.termination import TERMINATION


def train(cfg: DictConfig, *, dashboard: bool = False) -> None:
    """Run `cfg`; with every level off, RLinf's stock workers run.

    `dashboard`: True if a Ray cluster that is started for this run has the dashboard, a dozen processes that
    execute code sent to them.
    """
    active = asks_for_levels(cfg)
    if active:
        PROCESS_HOOKS.install()  # Hydra does so as well, if it finds its plugins
    # RLinf's own workers also need our CPU platform on machines without an accelerator.
    load_in_workers(active)
    if active:
        _launch(cfg, EmbodiedRunner, dashboard=dashboard)
        return
    set_aside(cfg, RunDisplay().note)
    runner = ObservedRunner(EmbodiedRunner)
    place = Path(cfg.runner.logger.log_path)
    with (
        leaving_nothing_of_a_dead_ray(),
        recorded(lambda: place, judge=ray_ending_of, state=runner.state),
        TERMINATION.through_ray(),
    ):
        _launch(cfg, runner, dashboard=dashboard)


def _launch(cfg: DictConfig, runner_class: object, *, dashboard: bool) -> None:
    launch(
        cfg,
        runner_class,
        # RLinf's collector of its workers' output asks the dashboard's server which file is whose.
        dashboard=dashboard or bool(cfg.runner.get("per_worker_log")),
        actor=_actor(cfg),
        rollout=_rollout(cfg),
        env=EnvWorker,
        **_reward(cfg),
    )


def _reward(cfg: DictConfig) -> dict[str, Any]:
    """Return {"reward": class of the reward workers}, if the run has a reward model.

    Raises:
        ValueError: the reward model needs a server that only RLinf's own script starts.
    """
    if not RLinfView.of(plain(cfg)).scored_by_workers:
        return {}
    if str(cfg.reward.get("worker_type", "model")).lower() != "api":
        from rlinf_async.hosts.rlinf.borrowed import EmbodiedRewardWorker

        return {"reward": EmbodiedRewardWorker}
    if not OmegaConf.select(cfg, "reward.api.api_base"):
        raise ValueError(
            "reward.worker_type=api has no reward.api.api_base, and rlinf-async train starts no server for "
            "it; give the address of one, or run RLinf's own train_embodied_agent.py, which starts SGLang"
        )
    from rlinf_async.hosts.rlinf.borrowed import EmbodiedAPIRewardWorker

    return {"reward": EmbodiedAPIRewardWorker}


RLINFS_BACKENDS = ("huggingface", "hf")
"""Values of `rollout.rollout_backend`, in RLinf's pull request 1587, for RLinf's own rollout worker."""


def _rollout(cfg: DictConfig) -> Any:
    """Return the class of the rollout workers.

    Raises:
        ValueError: the config asks for another engine; RLinf's own script chooses its class.
    """
    backend = OmegaConf.select(cfg, "rollout.rollout_backend")
    if backend is not None and str(backend).lower() not in RLINFS_BACKENDS:
        raise ValueError(
            f"rollout.rollout_backend={backend} is another engine than RLinf's own, and rlinf-async train "
            "starts RLinf's own rollout workers; run RLinf's train_embodied_agent.py of a version that has "
            "this engine, with the same overrides"
        )
    return MultiStepRolloutWorker


def _actor(cfg: DictConfig) -> Any:
    if cfg.algorithm.get("loss_type") == NFT_LOSS:
        from rlinf_async.hosts.rlinf.borrowed import EmbodiedNFTFSDPPolicy

        return EmbodiedNFTFSDPPolicy
    if not cfg.runner.get("use_training_pipeline", False):
        return EmbodiedFSDPActor
    from rlinf_async.hosts.rlinf.borrowed import PipelineEmbodiedFSDPActor

    return PipelineEmbodiedFSDPActor


def launch(cfg: DictConfig, runner_class: object, *, dashboard: bool = False, **workers: object) -> None:
    """Start Ray, RLinf's `workers` by component and their runner, and train."""
    with starting_ray(say=RunDisplay().note, options={"include_dashboard": dashboard}, shared=SHARED):
        _run(cfg, runner_class, **workers)


def _run(cfg: DictConfig, runner_class: Any, **workers: Any) -> None:
    # In the order of RLinf's scripts: `validate_cfg` counts the processes of components, and starts the
    # cluster for that.
    cfg = validate_cfg(cfg)
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=cfg.runner.per_worker_log_path)
    placement = HybridComponentPlacement(cfg, cluster)
    # After the cluster, which installs its own handler of SIGUSR1.
    hear_worker_groups()
    groups = {
        name: worker.create_group(cfg).launch(
            cluster, name=cfg[name].group_name, placement_strategy=placement.get_strategy(name)
        )
        for name, worker in workers.items()
    }
    runner = runner_class(cfg=cfg, **groups)
    runner.init_workers()
    runner.run()
