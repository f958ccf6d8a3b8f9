"""The learner ranks: veRL's training worker, fed from the buffer, and its start as a worker group."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from ray.util import remove_placement_group
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.config import AlgoConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_id, get_device_name, get_torch_device
from verl.workers.config import ActorConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.kit.sharded import ShardedWeights
from rlinf_async.hosts.verl.algorithms import VALUE_ESTIMATORS
from rlinf_async.hosts.verl.engine import MODEL_TYPE, PolicyEngine, PolicyModelConfig
from rlinf_async.hosts.verl.placement import resource_of
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.hosts.verl.training import engine_learner
from rlinf_async.hosts.verl.view import VerlView
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from rlinf_async.ray_runtime.publication.weights import WeightSender


class LearnerWorker(LearnerRank, TrainingWorker):
    """One learner rank, with veRL's own engine, mini-batch loop and checkpoints.

    veRL's methods block the event loop of this process: they may only be called between batches.
    """

    engine: PolicyEngine

    def __init__(self, config: TrainingWorkerConfig, *, actor: ActorConfig, algorithm: AlgoConfig) -> None:
        """`actor` and `algorithm` are veRL's sections of these names, for its losses and estimators."""
        # Before veRL's constructor, which joins a process group only if this process is in none.
        join_group()
        super().__init__(config=config)
        self.actor, self.algorithm = actor, algorithm
        # CUDA's current device is set per thread: the learner's thread would begin with device 0.
        self.start_learning(
            rank=self.rank, initializer=get_torch_device().set_device, initargs=(get_device_id(),)
        )

    def make_learner(self, settings: VerlSettings, busy: BusyMeter) -> StreamingLearner:
        self.engine.skipped_steps = self.skipped
        return engine_learner(self, settings, busy)

    def wants_values(self, settings: VerlSettings) -> bool:
        return settings.estimator in VALUE_ESTIMATORS

    def make_sender(self) -> WeightSender:
        return WeightSender(ShardedWeights(self.engine.module, sends=self.rank == 0))


def join_group() -> None:
    """On the CPU, join the learner ranks' process group here, as veRL's own call would name the CPU backend
    twice.
    """
    if get_device_name() == "cpu" and not dist.is_initialized():
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        # The same variables as in veRL's own call.
        address = os.environ.get("DIST_INIT_METHOD")
        dist.init_process_group("cpu:gloo", init_method=address, rank=rank, world_size=ranks)


def start_learners(config: DictConfig, view: VerlView, settings: VerlSettings) -> RayWorkerGroup:
    """Start ranks on `trainer.n_gpus_per_node` devices of each of `trainer.nnodes` nodes, and build their
    engines.
    """
    trainer = config.trainer
    pool = RayResourcePool(
        process_on_nodes=[trainer.n_gpus_per_node] * trainer.nnodes,
        use_gpu=trainer.device != "cpu",
        # veRL requests this number of CPUs per rank, by default 10; `settings.process_count` counts one.
        max_colocate_count=1,
        accelerator_type=resource_of(view, "learner"),
    )
    actor = actor_config(config, settings)
    start = RayClassWithInitArgs(
        cls=ray.remote(LearnerWorker),
        config=worker_config(config, settings, actor),
        actor=actor,
        algorithm=omega_conf_to_dataclass(config.algorithm),
    )
    group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=start, device_name=trainer.device)
    # veRL's worker builds its engine in `reset`, not in its constructor.
    group.reset()
    return group


def give_back(learners: RayWorkerGroup) -> None:
    """Free the learner ranks' placement groups in Ray, which ends ranks that still run.

    veRL itself never does so, which makes no difference to a process with a single run.
    """
    for placement in learners.resource_pool.pgs or ():
        remove_placement_group(placement)


def actor_config(config: DictConfig, settings: VerlSettings) -> ActorConfig:
    """Return veRL's `actor_rollout_ref.actor`, with the values that a trainer fills in before workers
    start.
    """
    actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    if actor.optim.total_training_steps < 1:
        actor.optim.total_training_steps = settings.batches
    # veRL's default is True: it would cut micro-batches by tokens, which samples here do not have.
    actor.engine.use_dynamic_bsz = False
    actor.engine.use_remove_padding = False
    actor.engine.micro_batch_size_per_gpu = settings.micro_batch_size
    actor.engine.infer_micro_batch_size_per_gpu = settings.micro_batch_size
    return actor


def worker_config(config: DictConfig, settings: VerlSettings, actor: ActorConfig) -> TrainingWorkerConfig:
    """Return the config of veRL's training worker."""
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
