"""Starts the learner ranks as a worker group of veRL's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.util import remove_placement_group
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import ActorConfig, TrainingWorkerConfig

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.verl.learner_worker import LearnerWorker
from rlinf_async.hosts.verl.model_config import MODEL_TYPE, PolicyModelConfig
from rlinf_async.hosts.verl.placement import resource_of
from rlinf_async.hosts.verl.settings import VerlSettings


@dataclass(frozen=True)
class LearnerGroup:
    """The learner ranks, and the places that veRL holds for them until they are given back."""

    group: RayWorkerGroup
    pool: RayResourcePool

    @property
    def workers(self) -> list[Any]:
        """Ray's handles, by rank."""
        workers: list[Any] = self.group.workers
        return workers

    def give_back(self) -> None:
        """Let others have the places, with which ranks that still run would end.

        veRL itself never does: for a process that starts one run it is the same.
        """
        for placement in self.pool.pgs or ():
            remove_placement_group(placement)


def start_learners(config: DictConfig, settings: VerlSettings) -> LearnerGroup:
    """Ranks on `trainer.n_gpus_per_node` devices of each of `trainer.nnodes` nodes, their engines built."""
    trainer = config.trainer
    pool = RayResourcePool(
        process_on_nodes=[trainer.n_gpus_per_node] * trainer.nnodes,
        use_gpu=trainer.device != "cpu",
        max_colocate_count=1,
        accelerator_type=resource_of(plain(config), "learner"),
    )
    actor = actor_config(config, settings)
    start = RayClassWithInitArgs(
        cls=ray.remote(LearnerWorker),
        config=worker_config(config, settings, actor),
        actor=actor,
        algorithm=omega_conf_to_dataclass(config.algorithm),
    )
    group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=start, device_name=trainer.device)
    group.reset()
    return LearnerGroup(group, pool)


def actor_config(config: DictConfig, settings: VerlSettings) -> ActorConfig:
    """veRL's `actor_rollout_ref.actor`, with what a trainer fills in before the workers start."""
    actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    if actor.optim.total_training_steps < 1:
        actor.optim.total_training_steps = settings.batches
    actor.engine.use_dynamic_bsz = False
    actor.engine.use_remove_padding = False
    actor.engine.micro_batch_size_per_gpu = settings.micro_batch_size
    actor.engine.infer_micro_batch_size_per_gpu = settings.micro_batch_size
    return actor


def worker_config(config: DictConfig, settings: VerlSettings, actor: ActorConfig) -> TrainingWorkerConfig:
    """Return the config from which veRL's training worker is built."""
    model = PolicyModelConfig(
        section=plain(config.vla.model),
        ckpt_path=OmegaConf.select(config, "vla.ckpt_path"),
        value_lr=OmegaConf.select(config, "critic.optim.lr"),
        adapters=settings.adapters,
        seed=settings.seed,
    )
    return TrainingWorkerConfig(
        model_type=MODEL_TYPE,
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
        profiler_config=None,
    )
