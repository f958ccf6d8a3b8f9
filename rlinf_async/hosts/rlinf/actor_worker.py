"""RLinf's FSDP actor, which trains from the buffer by batches or by micro-batches."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.kit.rank_exchange import Exchange, RankExchange
from rlinf_async.hosts.kit.samples import couples_rows
from rlinf_async.hosts.kit.sharded import TrainedShards
from rlinf_async.hosts.rlinf.borrowed import EmbodiedFSDPActor, all_reduce_dict
from rlinf_async.hosts.rlinf.corrected_loss import CorrectedLoss, Loss, corrected_loss, own_loss, register
from rlinf_async.hosts.rlinf.learner import FSDPTraining, Snapshot
from rlinf_async.hosts.rlinf.live_training import LiveTraining
from rlinf_async.hosts.rlinf.optimizer_progress import OptimizerProgress
from rlinf_async.hosts.rlinf.packed_loss import PackedLoss
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.teacher import NumberedTeacher, numbered, without_the_student
from rlinf_async.hosts.rlinf.worker_process import PluginWorker, cuda_device
from rlinf_async.loops.foreign import blaming_the_policy, contained
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.handles import Handle, RequestChannels
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from rlinf_async.ray_runtime.processes.seeds import learner_seed
from rlinf_async.ray_runtime.publication.weights import WeightSender

LOGGER = logging.getLogger(__name__)


# `PluginWorker` comes first: RLinf's `Worker` loads extension modules in its constructor, and the plugin must
# be installed before.
class StreamingActorWorker(PluginWorker, LearnerRank, EmbodiedFSDPActor):
    """One learner rank, with RLinf's own forward and backward passes, loss and optimizer step."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.loss: CorrectedLoss | None = None
        self.live: LiveTraining | None = None
        self.held_inputs = HeldInputs(pinned=torch.device(self.device).type == "cuda")
        # Offloaded from the start: with this key RLinf's `init_worker` ends with an offload.
        self._takes_turns = self._away = bool(cfg.actor.get("enable_offload", False))
        # The current device is set per thread, and RLinf's `FSDPModelManager` has set it only in this one.
        self.start_learning(
            rank=self._rank, initializer=self.torch_platform.set_device, initargs=(self.device,)
        )
        # Each piece has one rollout epoch; this is the process's own copy of the config.
        self.cfg.env.train.rollout_epoch = 1

    def gpu_device(self) -> torch.device | None:
        return cuda_device(self.device)

    def init_worker(self) -> None:
        # RLinf does not seed new weights. All ranks must draw the same weights, and different numbers
        # afterwards.
        seed = int(self.cfg.actor.get("seed", 0))
        torch.manual_seed(seed)
        name = str(self.cfg.actor.model.model_type)
        contained(super().init_worker, blaming_the_policy(f"learner rank {self._rank}", built=name))
        torch.manual_seed(learner_seed(seed, self._rank))

    def make_learner(self, settings: RLinfSettings, busy: BusyMeter) -> StreamingLearner:
        self._choose_loss(settings)
        return StreamingLearner(
            self.training(settings),
            settings,
            # RLinf freezes the actor while its critic warms up, and keeps the frozen names in this attribute.
            parameters=TrainedShards(self.model, frozen_for_now=self.store_requires_grad_param_name),
            busy=busy,
            rank=self._rank,
            probe_size=settings.probe_size,
        )

    def training(self, settings: RLinfSettings) -> FSDPTraining:
        """Return the training of RLinf's actor."""
        return FSDPTraining(self, settings)

    def _choose_loss(self, settings: RLinfSettings) -> None:
        """Wrap RLinf's loss with corrections and with packed live samples, as far as the settings need
        them.
        """
        packed: list[PackedLoss] = []
        self.live = None

        def around(base: Loss) -> Loss:
            packed.append(PackedLoss(base))
            return packed[0]

        leaves = self._left_out(settings)
        loss: Loss | None = None
        if weighting := settings.asynchrony.weighting:
            how: Any = {"around": around} if leaves else {}
            loss = self.loss = corrected_loss(self.cfg, settings.loss, weighting, **how)
        elif leaves:
            loss = around(own_loss(settings.loss))
        elif settings.distils:
            loss = own_loss(settings.loss)  # another learner of this process may have replaced it
        if packed:
            self.live = LiveTraining(
                packed[0],
                leaves,
                size=settings.micro_batch_size,
                accumulated=settings.micro_batches_per_step,
                streams=settings.streams,
                most=self.most,
                exchange=self._exchange(settings, leaves),
                inputs=self.held_inputs,
            )
        if loss is not None:
            # RLinf's `train_micro_batch` looks up its loss by this key for every micro-batch.
            self.cfg.algorithm.loss_type = register(loss, replaced=settings.loss)

    def _left_out(self, settings: RLinfSettings) -> LeftOut:
        self.model.train()  # as at the start of every batch, so that layers in eval mode are recognised
        if settings.left_out and couples_rows(self.model):
            LOGGER.warning(
                "actor.model.model_type=%s normalises by the samples of a micro-batch: those without a "
                "gradient are trained, too; async.skip.masked=false says so in the config",
                self.cfg.actor.model.model_type,
            )
            return LeftOut()
        return settings.left_out

    def _exchange(self, settings: RLinfSettings, leaves: LeftOut) -> Exchange | None:
        # A bonus that is a mean over a pass keeps rows in passes of their own micro-batch, and each rank may
        # scale its gradients by a number of its own.
        alone = settings.plan.learner_ranks == 1 or not leaves.mixes or self.grad_scaler.is_enabled()
        return None if alone else RankExchange(self.torch_platform.current_device())

    def most(self, count: int) -> int:
        """Return the largest `count` over all learner ranks; a collective call."""
        return int(all_reduce_dict({"count": float(count)}, op=dist.ReduceOp.MAX)["count"])

    def make_sender(self) -> WeightSender:
        return WeightSender(Snapshot(self))

    def wants_values(self, settings: RLinfSettings) -> bool:
        return settings.has_critic

    async def learn(
        self, batch: int, settings: RLinfSettings, requests: RequestChannels, coordinator: Handle
    ) -> dict[str, float]:
        if self._takes_turns:
            await self.compute(self._come_back)
        return await super().learn(batch, settings, requests, coordinator)

    async def offer_weights(self, version: int, coordinator: Handle) -> float:
        """Give the weights their version, copy them, and send them during later work; return the seconds of
        copying.
        """
        self.set_global_step(version)
        if self._away:
            # The optimizer stays offloaded: its state is not published.
            self.load_param_and_grad(self.device)
        return await self.sender.offer(version, coordinator, self.spans, on_copy=self._leave)

    def _come_back(self) -> None:
        """Move onto the accelerator, after the other components have left it."""
        if self._away:
            with self.spans.span("offload"):
                self.load_param_and_grad(self.device)
                self.load_optimizer(self.device)
            self._away = False

    def _leave(self) -> None:
        """Move off the accelerator, on every rank, before inference gets the new weights."""
        if self._takes_turns:
            with self.spans.span("offload"):
                self.offload_optimizer()
                # True: gradients as well, which stay on the device otherwise.
                self.offload_param_and_grad(True)
                # Every rank must have left: inference moves onto all of these accelerators when it gets the
                # weights.
                dist.barrier()
            self._away = True

    def compute_opd_teacher_logprobs(self) -> None:
        """Have the teacher of on-policy distillation score the batch, by RLinf's own method."""
        with without_the_student(self), numbered(self.rollout_batch):
            super().compute_opd_teacher_logprobs()

    def _get_opd_teacher_model(self) -> NumberedTeacher:
        return NumberedTeacher(super()._get_opd_teacher_model(), self.held_inputs)

    def train_micro_batch(self, micro_batch: Tree, metrics: dict[str, list[float]], *, is_last: bool) -> None:
        if self.live is None:
            self._train_pass(micro_batch, metrics, is_last)
        else:
            self.live.micro_batch(micro_batch, metrics, self._train_pass, is_last=is_last)

    def _train_pass(self, samples: Tree, metrics: MutableMapping[str, list[float]], is_last: bool) -> None:
        anchoring: AbstractContextManager[None] = nullcontext()
        samples = self.held_inputs.with_inputs(samples)
        if self.loss is not None:
            anchoring = self.loss.micro_batch(samples, self.version)
        with self.spans.span("micro-batch"), anchoring:
            super().train_micro_batch(samples, metrics, is_last=is_last)

    def save_checkpoint(self, save_path: str, step: int = 0) -> None:
        """Save RLinf's checkpoint, and the state that it leaves out; see `optimizer_progress`."""
        super().save_checkpoint(save_path, step)
        if self._rank == 0:
            OptimizerProgress.of(self).write(Path(save_path))

    def load_checkpoint(self, load_path: str) -> None:
        """Load RLinf's checkpoint, after building the optimizer that fits its state."""
        progress = OptimizerProgress.read(Path(load_path), warmup_steps=self.critic_warmup_steps)
        if self._away:
            self.load_param_and_grad(self.device)  # the optimizer is built for parameters on the device
        progress.prepare(self)
        super().load_checkpoint(load_path)
        progress.restore(self)

    def optimizer_step(self) -> Any:
        """Call RLinf's optimizer step, which is skipped if gradients are not finite, and count skipped
        steps.
        """
        with self.spans.span("optimizer step"):
            grad_norm, learning_rates = super().optimizer_step()
        scales_gradients = OmegaConf.select(self.cfg, "actor.fsdp_config.grad_scaler.enabled")
        self.skipped.step(float(grad_norm), scaled=bool(scales_gradients))
        return grad_norm, learning_rates
