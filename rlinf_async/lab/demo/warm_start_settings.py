"""The settings of a starting policy. Importing this module imports neither torch nor a simulator."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from rlinf_async.extras import is_here
from rlinf_async.lab.demo.metaworld_section import USUAL_TASK

PARALLEL_EPISODES = 16
"""Number of test episodes played at the same time."""


@dataclass(frozen=True)
class WarmStart:
    """Settings of the demonstrations, of cloning, and of the success at which cloning stops.

    Cloning stops at the first epoch with a success of at least `lowest_success` over `episodes` test episodes
    with sampled actions. If that epoch exceeds `highest_success`, a mixture with the previous epoch is
    searched. `max_epochs` bounds the time in any case.

    `model` is the section of a `tiny_pi0` to clone into, which plays episodes in its chunks; without it an
    `mlp_policy` with the noise `log_std` is cloned.
    """

    task_name: str = "button-press-topdown-v3"
    seed: int = 0
    demonstrations: int = 10
    demonstration_steps: int = 100
    learning_rate: float = 1e-4
    batch_size: int = 256
    log_std: float = -1.0
    lowest_success: float = 0.10
    highest_success: float = 0.22
    episodes: int = 64
    max_epochs: int = 120
    max_episode_steps: int = 20
    action_repeat: int = 5
    model: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.task_name != USUAL_TASK and not _is_task(self.task_name):
            raise ValueError(
                f"warm_start.task_name={self.task_name!r} is no task of Meta-World; take one such as push-v3"
            )
        counts = (
            "max_episode_steps",
            "action_repeat",
            "demonstrations",
            "demonstration_steps",
            "batch_size",
            "max_epochs",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"warm_start.{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0:
            raise ValueError(f"warm_start.learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.lowest_success <= self.highest_success <= 1:
            raise ValueError(
                f"warm_start needs 0 <= lowest_success={self.lowest_success} "
                f"<= highest_success={self.highest_success} <= 1"
            )
        if self.episodes < 1 or self.episodes % PARALLEL_EPISODES:
            raise ValueError(
                f"warm_start.episodes must be a multiple of {PARALLEL_EPISODES}, got {self.episodes}"
            )

    @property
    def key(self) -> str:
        """A name that is the same for equal settings, and different for different ones."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def _is_task(name: str) -> bool:
    """Return True if Meta-World has the task, or is not installed, which others say."""
    if not is_here("metaworld"):
        return True
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    return name in ALL_V3_ENVIRONMENTS
