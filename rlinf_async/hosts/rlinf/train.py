"""A training run, wired like RLinf's own entry script for embodied agents."""

from __future__ import annotations

from omegaconf import DictConfig
from rlinf.config import validate_cfg
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster
from rlinf.utils.placement import HybridComponentPlacement
from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker


def train(cfg: DictConfig) -> None:
    """Run `cfg`, with RLinf's stock workers where its async block turns every level off."""
    cfg = validate_cfg(cfg)
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=cfg.runner.per_worker_log_path)
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {
        name: worker.create_group(cfg).launch(
            cluster, name=cfg[name].group_name, placement_strategy=placement.get_strategy(name)
        )
        for name, worker in (
            ("actor", EmbodiedFSDPActor),
            ("rollout", MultiStepRolloutWorker),
            ("env", EnvWorker),
        )
    }
    runner = EmbodiedRunner(cfg=cfg, **groups)
    runner.init_workers()
    runner.run()
