"""The sections of the `async` block: `train`, `rollout` and `streamer`, one per level, `skip` and `survive`;
and `advanced`, settings that few runs need, without a promise of compatibility.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlinf_async.core.types import Correction


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The treatment, in the loss, of samples that an older policy has drawn."""

    correction: Correction
    """The weight of a sample; never `none`."""
    max_weight: float = math.inf
    """The bound of the weight."""
    interpolates: bool = False
    """True if the proximal policy is interpolated; its log-probabilities are recomputed otherwise."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Level 1: rollouts do not wait for the optimizer."""

    enabled: bool = False
    max_staleness: int = 1
    """Policy versions that a trained sample may be old, counted in global steps."""
    correction: Correction = "decoupled"
    """The weight of a sample that an older policy has drawn; see `core.objectives.importance_weight`."""


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Level 2: no environment shard waits for another."""

    enabled: bool = False
    shards: int | Literal["auto"] = "auto"
    """Environment shards per env worker."""
    max_batch_size: int | Literal["auto"] = "auto"
    """Samples (environments) in one forward pass at most."""
    max_wait_ms: float | Literal["auto"] = "auto"
    """Milliseconds that the oldest request waits for more; auto is 0: fire when an accelerator is idle."""

    @property
    def max_wait(self) -> float:
        """`max_wait_ms` in seconds."""
        return 0.0 if self.max_wait_ms == "auto" else float(self.max_wait_ms) / 1000.0


@dataclass(frozen=True, kw_only=True)
class StreamerConfig:
    """Level 3: the learner accumulates micro-batches while the rest is still being collected."""

    enabled: bool = False
    micro_batch_size: int | Literal["auto"] = "auto"
    """Samples per learner rank in one forward and backward pass; auto is the host's own."""


@dataclass(frozen=True, kw_only=True)
class SkipConfig:
    """Work that no result depends on, left out where that is exact; `explain` says where it is not."""

    frames: bool = False
    """Cameras draw the frames that the policy, a reward model or a video looks at, and no others."""
    ended: bool = False
    """After the end of an episode that a batch masks, no simulator is stepped and no action inferred."""
    masked: bool = False
    """Samples with a zero gradient are in no pass of the learner."""

    @property
    def kinds(self) -> dict[str, bool]:
        return {"frames": self.frames, "ended": self.ended, "masked": self.masked}


@dataclass(frozen=True, kw_only=True)
class SurviveConfig:
    """The faults that a run outlives. Over a budget it ends with the first error."""

    env_restarts: int = 10
    """Times that a shard's environments are rebuilt within ten minutes, each time at the cost of one
    rollout; 0 ends the run with the first error."""
    process_restarts: int = 5
    """Times that an env worker or an inference rank is started again within ten minutes; 0 ends the run
    with the first death."""


# The docstrings of the fields below, which docs/config.md shows, name these four numbers.
SHORTEST_LIMIT_S = 100.0
SLOWDOWN_LIMIT = 20.0
"""With `auto`, the limit of a step or a reset over the longest one before; the limit is at least
`SHORTEST_LIMIT_S`."""
MAX_WEIGHT = 2.0
"""Bound of the importance weights of `tis`, as is common practice."""
MAX_COMPARED_BYTES = 2 * 10**9
"""Bytes of trained weights per learner rank up to which `measure_ratios: auto` keeps past copies."""


@dataclass(frozen=True, kw_only=True)
class AdvancedConfig:
    """Limits and switches that most runs leave alone; they may change from one version to the next."""

    accept_bias: bool = False
    """True confirms `train.correction: none`: off-policy data is trained as if it were on-policy."""
    max_weight: float | Literal["auto"] = "auto"
    """The bound of the weight that `train.correction: tis` gives a sample; auto: 2."""
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """The policy at the start of the update: recomputed in a pass without gradients, or interpolated."""
    normalization: Literal["auto", "running", "deferred"] = "auto"
    """Advantages (GAE) in the first optimizer step: by the batch before (streams), or by the batch (exact).

    Streaming can hide the first update epoch only: auto is running with one epoch, deferred with more.
    """
    balance: Literal["auto", "exact", "tasks"] = "auto"
    """How environments contribute equally to every batch: each environment with its own task (exact), or the
    next free environment with the next task (tasks). auto: tasks, if environments can be told their tasks or
    draw them anew for every rollout; else exact."""
    fit_shards: bool | Literal["auto"] = "auto"
    """True lets a run continue with fewer shards after its first steps, twice at most, if decisions are so
    fast that they wait for the env worker's Python; simulators are then built anew. auto: True if
    `rollout.shards` is auto. A resumed run keeps its number of shards."""
    shared_group_scene: bool = False
    """True starts all members of a group of RLinf's LIBERO in one scene. RLinf alone gives them the same task
    and initial state, but other places of cabinets, stoves and racks."""
    gpu_shares: bool = False
    """True limits torch's memory in learner and inference ranks that share a GPU with other processes of the
    run, and names the process that exceeds its share. Not yet run on a GPU."""
    keep_checkpoints: int | Literal["all"] = "all"
    """Whole checkpoints that are kept, the newest; older ones are removed when one has been written."""
    measure_ratios: bool | Literal["auto"] = "auto"
    """True logs, per staleness and on a few samples, how far sampler, learner and policies differ.

    Each step then copies the trained parameters to the CPU, which keeps `max_staleness + 1` copies. auto:
    True if a learner rank trains at most 2 GB of parameters, else only measurements that need no copy.
    """
    non_finite: Literal["refuse", "stop", "off"] = "refuse"
    """The fate of a rollout or a gradient with a NaN or an infinity: it is refused and counted (refuse), it
    ends the run (stop), or it is not looked for (off)."""
    start_s: float = 1800.0
    """Seconds that the environments of a shard may take to be built, and for their first reset and
    step, which may compile."""
    reset_s: float | Literal["auto"] = "auto"
    """Seconds that a reset of a shard's environments may take before they count as dead; auto: 100 s,
    or 20 times the longest reset that the shard has seen if that is more, and `start_s` for its first."""
    step_s: float | Literal["auto"] = "auto"
    """Seconds that a step of a shard's environments may take before they count as dead; auto: 100 s, or
    20 times the longest step that the shard has seen if that is more, and `start_s` for its first."""
    silent_s: float = 100.0
    """Seconds without an answer after which a process is killed: an env worker or inference rank is
    then started again, without a learner rank or a channel the run ends."""
    # The docstrings of `SurviveConfig` speak of ten minutes.
    window_s: float = 600.0
    """The length in seconds of the window that counts restarts for `survive`."""
    stall_s: float = 120.0
    """Seconds without any progress after which the run says which part waits for what."""
    deadline_s: float = 7200.0
    """The longest wait between workers, in seconds. It is a last resort: a crash is noticed at once."""

    @property
    def measures(self) -> bool:
        """True if differences between sampler, learner and policies are measured, perhaps in part
        (`auto`)."""
        return self.measure_ratios is not False

    def compares_versions(self, trained_bytes: float) -> bool:
        """Return True if a learner rank with `trained_bytes` of trained weights compares past versions,
        too."""
        return self.measures and (self.measure_ratios != "auto" or trained_bytes <= MAX_COMPARED_BYTES)

    def weight_bound(self, correction: Correction) -> float:
        """Return the bound of the weights of `correction`; infinity if they have none."""
        auto = MAX_WEIGHT if self.max_weight == "auto" else self.max_weight
        return auto if correction == "tis" else math.inf

    def defers(self, update_epochs: int) -> bool:
        """Return True if advantages that are normalised over a batch wait until it is complete."""
        return update_epochs > 1 if self.normalization == "auto" else self.normalization == "deferred"

    def step_limit(self, longest: float) -> float:
        """Most seconds of a step; `longest`: seconds of the shard's longest step so far, 0 before the
        first."""
        return self._limit(self.step_s, longest)

    def reset_limit(self, longest: float) -> float:
        """Most seconds of a reset; `longest`: as for `step_limit`."""
        return self._limit(self.reset_s, longest)

    def _limit(self, value: float | Literal["auto"], longest: float) -> float:
        if value != "auto":
            return float(value)
        if not longest:
            return self.start_s
        return max(SHORTEST_LIMIT_S, SLOWDOWN_LIMIT * longest)
