"""What a checkpoint of RLinf leaves out of an optimizer: how far its warm-up and its loss scale have come.

While `actor.optim.critic_warmup_steps` lasts, RLinf trains the critic alone, by an optimizer of its own; then
it builds one of all parameters. An actor that is built anew counts from 0, with the optimizer of the warm-up,
into which the state of the other one does not fit. Here the count is kept beside RLinf's files, and the right
optimizer is built before its state is loaded.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader

from rlinf_async.observe.files import write_whole

FILE_NAME = "optimizer_progress.json"
"""Beside RLinf's `dcp_checkpoint`."""
STATE_PREFIX, CRITIC = "optimizers.state.", "value_head"
"""In the names of tensors that `torch.distributed.checkpoint` has stored, and in those of parameters that
RLinf takes for the critic's."""


@dataclass(frozen=True, kw_only=True)
class OptimizerProgress:
    """How far the optimizer of an RLinf actor had come when a checkpoint was written."""

    optimizer_steps: int | None
    """None where it is not known: Adam's own count says it, of the steps that were not left out."""
    critic_warmup_steps: int
    """Of the warm-up that lasts; 0 behind it, and where there is none."""
    grad_scaler: dict[str, Any] = field(default_factory=dict)
    """The state of the scale of losses; empty where they are not scaled."""

    @classmethod
    def of(cls, actor: Any) -> OptimizerProgress:
        return cls(
            optimizer_steps=int(actor.optimizer_steps),
            critic_warmup_steps=int(actor.critic_warmup_steps),
            grad_scaler=dict(actor.grad_scaler.state_dict()),
        )

    @classmethod
    def read(cls, folder: Path, *, warmup_steps: int) -> OptimizerProgress:
        """Return what a checkpoint tells; one of stock RLinf by the tensors that it has.

        Args:
            folder: RLinf's, of the actor.
            warmup_steps: of the config.
        """
        path = folder / FILE_NAME
        if path.is_file():
            return cls(**json.loads(path.read_text()))
        warms_up = warmup_steps > 0 and not _trains_all(folder)
        return cls(optimizer_steps=None, critic_warmup_steps=warmup_steps if warms_up else 0)

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE_NAME, (json.dumps(asdict(self)) + "\n").encode())

    def prepare(self, actor: Any) -> None:
        """Give `actor`, which is freshly built, the optimizer and the schedule whose state is to be loaded.

        Raises:
            ValueError: the checkpoint is of the warm-up, and the config has none.
        """
        if self.critic_warmup_steps and not actor.critic_warmup_steps:
            raise ValueError(
                "the checkpoint was written while the critic warmed up; set "
                f"actor.optim.critic_warmup_steps={self.critic_warmup_steps} to go on from it"
            )
        if actor.critic_warmup_steps and not self.critic_warmup_steps:
            # As RLinf's `optimizer_step` does with the last step of the warm-up.
            actor.optimizer = actor.build_optimizer(model=actor.model)
            actor.critic_warmup_steps = 0
            actor.lr_scheduler = actor.build_lr_scheduler(
                optimizer=actor.optimizer, optim_config=actor.cfg.actor.optim
            )

    def restore(self, actor: Any) -> None:
        """Set the counts of `actor`, into which the checkpoint is loaded."""
        steps = self.optimizer_steps
        actor.optimizer_steps = _steps_of_adam(actor.optimizer) if steps is None else steps
        if self.grad_scaler and actor.grad_scaler.is_enabled():
            actor.grad_scaler.load_state_dict(self.grad_scaler)


def _trains_all(folder: Path) -> bool:
    """Return True if the optimizer in a checkpoint has a state of other parameters than the critic's."""
    nested = folder / "dcp_checkpoint"
    names = FileSystemReader(nested if nested.is_dir() else folder).read_metadata().state_dict_metadata
    return any(STATE_PREFIX in name and CRITIC not in name for name in names)


def _steps_of_adam(optimizer: Any) -> int:
    """Return the steps that an optimizer has made, without the empty one with which RLinf builds it."""
    counts = (int(state["step"]) for state in optimizer.state.values() if "step" in state)
    return max(0, max(counts, default=0) - 1)
