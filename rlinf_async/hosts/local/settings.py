"""The settings of a run in one process; names have the same meaning as in RLinf's config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rlinf_async.config import AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.hosts.judge.table import Key, Kind, read_rows
from rlinf_async.hosts.simulators import Evaluation, divide, max_batch_size, request_reasons
from rlinf_async.loops.run_settings import RunSettings

ROWS, _ = read_rows(Path(__file__).with_name("keys.toml"))
"""The keys of a local config."""
SETTING_KINDS: Mapping[str, Kind] = {
    row.name.removeprefix("settings."): row.kind
    for row in ROWS
    if row.name.startswith("settings.") and row.fate == "served"
}
"""The fields of `LocalSettings` that a config may hold in its block `settings`."""


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """A run of `batches` global batches, each `rollout_epochs` rollouts of all `total_envs` environments.

    A sample is one decision. A global batch is trained `update_epoch` times, in optimizer steps of
    `global_batch_size` samples; their gradients are accumulated over micro-batches of `micro_batch_size`
    samples.
    """

    algorithm: Literal["ppo", "grpo"] = "ppo"
    asynchrony: AsyncConfig = field(default_factory=AsyncConfig)
    """`balance: auto` is resolved where a config is read, or by a trainer that has built environments."""
    total_envs: int = 16
    env_workers: int = 1
    """Env workers. Each has one shard while level 2 is off, and several with level 2."""
    inference_ranks: int = 1
    horizon: int = 20
    """Decisions in one rollout."""
    rollout_epochs: int = 1
    group_size: int = 1
    """Number of environments that start from the same initial state; GRPO compares their returns."""
    batches: int = 10
    global_batch_size: int = 160
    micro_batch_size: int = 160
    update_epoch: int = 1
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_clip: float = 1.0
    lr: float = 1e-4
    value_lr: float = 3e-4
    clip_grad: float = 0.5
    seed: int = 0
    horizon_ends: bool = False
    """True if the last decision ends the episode, as in RLinf without auto_reset; else its value is
    bootstrapped."""
    weighting: Literal["sample", "episode"] = "sample"
    """The unit of equal weight in the loss: every valid sample, or every episode, as in RLinf."""

    def __post_init__(self) -> None:
        keys = (Key(name=name, kind=kind, required=True) for name, kind in SETTING_KINDS.items())
        reasons = (key.reason(getattr(self, key.name)) for key in keys)
        refuse([reason for reason in reasons if reason])
        if wrong := next(self._misfits(), ""):
            raise ValueError(wrong)
        # Last: the division into shards refuses sizes by itself.
        refuse(list(request_reasons(self.run)))

    def _misfits(self) -> Iterator[str]:
        """Yield what does not fit together."""
        batch, step = self.samples_per_batch, self.global_batch_size
        micro_batch = self.samples_per_micro_batch
        if self.algorithm == "grpo" and self.group_size < 2:
            yield f"group_size={self.group_size} must be at least 2 for GRPO; nearest: 2"
        if batch % step:
            yield (
                f"{batch} samples per batch ({self.total_envs} environments x {self.rollout_epochs} rollout "
                f"epochs x {self.horizon} decisions) are not a multiple of global_batch_size={step}"
            )
        if step % micro_batch:
            yield f"global_batch_size={step} is not a multiple of micro_batch_size={micro_batch}"

    # cached_property works in a frozen dataclass, as it writes to `__dict__` directly.
    @cached_property
    def plan(self) -> ShardPlan:
        """The division of the environments into shards."""
        named = ("total_envs", "env_workers", "inference_ranks", "rollout_epochs", "group_size")
        sizes = {name: getattr(self, name) for name in named}
        one_each = ShardPlan(**sizes, learner_ranks=1, shards_per_worker=1)
        simulator = {"env_type": "local", "env_class": "local"}
        rollout = self.asynchrony.rollout
        # This host has no evaluation environments that would have to divide into shards.
        return divide(one_each, simulator, rollout, stages=1, evaluates=lambda shards: True)

    @property
    def max_batch_size(self) -> int:
        """The largest number of environments in one forward pass, with level 2."""
        return max_batch_size(self.asynchrony.rollout, self.plan, Evaluation(None))

    @property
    def usual_env(self) -> dict[str, Any]:
        """The keys of `env` that the host completes for environments."""
        return {
            "total_num_envs": self.total_envs,
            "group_size": self.group_size,
            "seed": self.seed,
            "auto_reset": False,
            "ignore_terminations": False,
            "is_eval": False,
        }

    @property
    def samples_per_micro_batch(self) -> int:
        streamer = self.asynchrony.streamer
        size = streamer.micro_batch_size if streamer.enabled else "auto"
        return self.micro_batch_size if size == "auto" else size

    @property
    def samples_per_batch(self) -> int:
        return self.total_envs * self.rollout_epochs * self.horizon

    @cached_property
    def run(self) -> RunSettings:
        """The settings for the loops and brokers of this run."""
        masked = self.asynchrony.skip.masked
        return RunSettings(
            asynchrony=self.asynchrony,
            plan=self.plan,
            horizon=self.horizon,
            batches=self.batches,
            global_batch_size=self.global_batch_size,
            micro_batch_size=self.samples_per_micro_batch,
            update_epoch=self.update_epoch,
            max_batch_size=self.max_batch_size,
            normalizes=self.algorithm == "ppo",
            seed=self.seed,
            skips_ended=self.asynchrony.skip.ended,
            # Only GRPO's loss has no terms besides advantages.
            left_out=LeftOut(masked=masked, silent=masked and self.algorithm == "grpo"),
        )
