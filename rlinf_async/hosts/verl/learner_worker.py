"""veRL's training worker, trained from a buffer, batch by batch or micro-batch by micro-batch."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from verl.trainer.config import AlgoConfig
from verl.utils.device import get_device_id, get_device_name, get_torch_device
from verl.workers.config import ActorConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.kit.scoring import scoring_inputs
from rlinf_async.hosts.verl.engine import PolicyEngine
from rlinf_async.hosts.verl.estimators import WITH_VALUES
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.hosts.verl.training import engine_learner
from rlinf_async.hosts.verl.weights import EngineWeights
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from rlinf_async.ray_runtime.publication.weights import WeightSender


class LearnerWorker(LearnerRank, TrainingWorker):
    """One learner rank. Its engine, mini-batch loop and checkpoints are veRL's own.

    veRL's methods block the event loop of this process: they are for the time between batches.
    """

    engine: PolicyEngine

    def __init__(self, config: TrainingWorkerConfig, *, actor: ActorConfig, algorithm: AlgoConfig) -> None:
        """`actor` and `algorithm` are veRL's sections of these names, for its losses and estimators."""
        join_group()
        super().__init__(config=config)
        self._actor = actor
        self._algorithm = algorithm
        self.start_learning(
            rank=self.rank, initializer=get_torch_device().set_device, initargs=(get_device_id(),)
        )

    def make_learner(self, settings: VerlSettings, busy: BusyMeter) -> StreamingLearner:
        self.engine.skipped = self.skipped
        return engine_learner(
            self, settings, actor=self._actor, algorithm=self._algorithm, busy=busy, spans=self.spans
        )

    def scoring_inputs(self, payload: Any) -> Tree:
        return scoring_inputs(payload)

    def wants_values(self, settings: VerlSettings) -> bool:
        return settings.estimator in WITH_VALUES

    def make_sender(self) -> WeightSender:
        return WeightSender(EngineWeights(self.engine, sends=self.rank == 0))


def join_group() -> None:
    """On the CPU, join the learner ranks' process group: veRL would name the device's backend twice."""
    if get_device_name() == "cpu" and not dist.is_initialized():
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        dist.init_process_group("cpu:gloo", rank=rank, world_size=ranks)
