"""Saves the optimizer state that RLinf's checkpoints leave out: the critic's warm-up and the loss scale.

During `actor.optim.critic_warmup_steps` RLinf trains only the critic, with a separate optimizer; then it
builds one for all parameters. A new actor counts from 0 and has the warm-up's optimizer, into which the state
of the later one does not fit. This module keeps the count beside RLinf's files, and builds the right
optimizer before its state is loaded.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.observe.files import write_whole

FILE_NAME = "optimizer_progress.json"
"""The file beside RLinf's `dcp_checkpoint`."""
STATE_PREFIX, CRITIC_MODULE = "optimizers.state.", "value_head"
"""Parts of the names of optimizer tensors in a `torch.distributed.checkpoint`, and of the parameters that
RLinf counts as the critic's."""


@dataclass(frozen=True, kw_only=True)
class OptimizerProgress:
    """The progress of an RLinf actor's optimizer at a checkpoint."""

    optimizer_steps: int | None
    """None if unknown; then Adam's own count is used, which does not count skipped steps."""
    critic_warmup_steps: int
    """The length of a warm-up that is going on; 0 after it and without one."""
    grad_scaler: dict[str, Any] = field(default_factory=dict)
    """The state of the loss scaler; empty if losses are not scaled."""

    @classmethod
    def of(cls, actor: Any) -> OptimizerProgress:
        return cls(
            optimizer_steps=int(actor.optimizer_steps),
            critic_warmup_steps=int(actor.critic_warmup_steps),
            grad_scaler=dict(actor.grad_scaler.state_dict()),
        )

    @classmethod
    def read(cls, folder: Path, *, warmup_steps: int) -> OptimizerProgress:
        """Return the progress in a checkpoint; for one of stock RLinf it is inferred from the stored tensors.

        Args:
            folder: RLinf's folder of the actor.
            warmup_steps: `critic_warmup_steps` of the config.
        """
        path = folder / FILE_NAME
        if path.is_file():
            return cls(**json.loads(path.read_text()))
        warms_up = warmup_steps > 0 and not _trains_all(folder)
        return cls(optimizer_steps=None, critic_warmup_steps=warmup_steps if warms_up else 0)

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE_NAME, (json.dumps(asdict(self)) + "\n").encode())

    def prepare(self, actor: Any) -> None:
        """Build the optimizer and the schedule of a new `actor` that fit the stored state.

        Raises:
            ValueError: the checkpoint was written during a warm-up, and the config has none.
        """
        if self.critic_warmup_steps and not actor.critic_warmup_steps:
            raise ValueError(
                "the checkpoint was written while the critic warmed up; set "
                f"actor.optim.critic_warmup_steps={self.critic_warmup_steps} to go on from it"
            )
        if actor.critic_warmup_steps and not self.critic_warmup_steps:
            # As RLinf's `optimizer_step` does at the last step of the warm-up.
            actor.optimizer = actor.build_optimizer(model=actor.model)
            actor.critic_warmup_steps = 0
            actor.lr_scheduler = actor.build_lr_scheduler(
                optimizer=actor.optimizer, optim_config=actor.cfg.actor.optim
            )

    def restore(self, actor: Any) -> None:
        """Set the counts of `actor`, after the checkpoint was loaded."""
        steps = self.optimizer_steps
        actor.optimizer_steps = _steps_of_adam(actor.optimizer) if steps is None else steps
        if self.grad_scaler and actor.grad_scaler.is_enabled():
            actor.grad_scaler.load_state_dict(self.grad_scaler)


def _trains_all(folder: Path) -> bool:
    """Return True if the optimizer in a checkpoint has state for parameters other than the critic's."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # half a second, and seldom needed

    nested = folder / "dcp_checkpoint"
    names = FileSystemReader(nested if nested.is_dir() else folder).read_metadata().state_dict_metadata
    return any(STATE_PREFIX in name and CRITIC_MODULE not in name for name in names)


def _steps_of_adam(optimizer: Any) -> int:
    """Return the number of steps of an optimizer, without the empty step that RLinf takes at construction."""
    counts = (int(state["step"]) for state in optimizer.state.values() if "step" in state)
    return max(0, max(counts, default=0) - 1)
