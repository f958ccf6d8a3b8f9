"""RLinf's NFT actor as a learner rank of ours: its preparation, loss, moving average and publication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, leaf, map_tensors, rows_of
from rlinf_async.hosts.kit.sharded import whole
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.learner import FSDPTraining, Snapshot
from rlinf_async.hosts.rlinf.nft import scores_old_velocities
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.worker_process import async_config
from rlinf_async.ray_runtime.checkpoints.saved_buffer import read_tensors, write_tensors
from rlinf_async.ray_runtime.publication.weights import WeightSender

AVERAGE_FILE = "moving_average.safetensors"
"""The file beside RLinf's `dcp_checkpoint`; RLinf's own checkpoints hold no moving average."""

Weights = dict[str, torch.Tensor]


class NFTTraining(FSDPTraining):
    """Trains whole batches with RLinf's own method, which prepares the inputs of all samples first."""

    def look_at(self, rollout: Tree) -> None:
        """Examine nothing: the loss has no likelihood that learner and inference could differ in."""

    def train_whole(self, rollout: Tree) -> dict[str, float]:
        numbers = leaf(rollout, INPUTS_FIELD)
        inputs = self._inputs.copied(numbers.flatten())
        rollout[INPUTS_FIELD] = map_tensors(lambda tensor: tensor.unflatten(0, numbers.shape), inputs)
        return super().train_whole(rollout)


class NFTActorWorker(StreamingActorWorker):
    """A learner rank that `replacements` puts before RLinf's NFT actor.

    RLinf scores v_d, the velocity of the policy that acted, by the present policy, which is the same without
    a lag. With one, this class has each sample's v_d scored by the version that acted: RLinf's own method
    does it, as with a moving average, for a model with the published weights of that version.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        asynchrony = async_config(cfg)
        self._remembers = asynchrony.max_staleness if scores_old_velocities(cfg.algorithm) else 0
        self._published: dict[int, Weights] = {}
        self._acting: Weights | None = None

    def training(self, settings: RLinfSettings) -> FSDPTraining:
        return NFTTraining(self, settings)

    def make_sender(self) -> WeightSender:
        return WeightSender(RememberingSnapshot(self))

    def remember(self, state: Mapping[str, Any]) -> None:
        """Copy the weights that are published as the present version; a collective call."""
        if not self._remembers:
            return
        # A tensor of the device in each rank, as RLinf's temporary model has.
        self._published[self.version] = {name: _copy(value) for name, value in state.items()}
        for version in [each for each in self._published if each < self.version - self._remembers]:
            del self._published[version]

    def get_rollout_state_dict(self) -> Any:
        base: Any = super()
        return base.get_rollout_state_dict() if self._acting is None else self._acting

    def _get_current_nft_tau(self) -> float:
        base: Any = super()
        # Below 1 RLinf scores with a model that has the weights of `get_rollout_state_dict`.
        return base._get_current_nft_tau() if self._acting is None else 0.0

    def _recompute_v_old(self, forward_inputs: Tree, xcur: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        base: Any = super()
        if not self._published:
            return base._recompute_v_old(forward_inputs, xcur, t)
        acted = self.rollout_batch["versions"].flatten().long()
        velocities = torch.empty_like(xcur)
        for version in acted.unique().tolist():
            rows = (acted == version).nonzero().flatten()
            with self._acting_as(version):
                part = base._recompute_v_old(rows_of(forward_inputs, rows), xcur[rows], t[rows])
            velocities[rows] = part.to(velocities)
        return velocities

    def save_checkpoint(self, save_path: str, step: int = 0) -> None:
        """Save the checkpoint, and the moving average of the weights, if there is one."""
        super().save_checkpoint(save_path, step)
        if self._rank == 0 and self.rollout_model_state_dict:
            average = {name: _copy(value) for name, value in self.rollout_model_state_dict.items()}
            write_tensors(Path(save_path) / AVERAGE_FILE, average)

    def load_checkpoint(self, load_path: str) -> None:
        """Load the checkpoint and its moving average; without one the average begins with the loaded
        weights.
        """
        super().load_checkpoint(load_path)
        self.init_rollout_model()
        saved = Path(load_path) / AVERAGE_FILE
        if self.rollout_model_state_dict and saved.is_file():
            average = read_tensors(saved)
            for name, value in self.rollout_model_state_dict.items():
                if isinstance(value, torch.Tensor):
                    value.copy_(average[name])

    @contextmanager
    def _acting_as(self, version: int) -> Iterator[None]:
        # After a resume, versions of pieces that were saved are older than any here: the next one stands in.
        nearest = min(self._published, key=lambda each: abs(each - version))
        self._acting = self._published[nearest]
        try:
            yield
        finally:
            self._acting = None


class RememberingSnapshot(Snapshot):
    """Copies the weights, and has the worker remember them."""

    def state(self) -> Mapping[str, torch.Tensor]:
        state = super().state()
        self._actor.remember(state)
        return state


def _copy(value: Any) -> Any:
    return whole(value).detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
