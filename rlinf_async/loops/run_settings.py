"""The settings of a run that all hosts share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from rlinf_async.config import AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import MAX_PROBE_SAMPLES


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A run of `batches` global batches, resolved once before it starts and passed to every process.

    A sample is one decision of one environment. A global batch is trained `update_epoch` times, in optimizer
    steps of `global_batch_size` samples. Every learner rank accumulates gradients over micro-batches.
    """

    asynchrony: AsyncConfig
    plan: ShardPlan
    horizon: int
    """Decisions in one rollout."""
    batches: int
    """Global batches in the run; each makes a version of the policy."""
    global_batch_size: int
    """Samples in one optimizer step, over all learner ranks."""
    micro_batch_size: int
    """Samples of one learner rank in one forward and backward pass."""
    update_epoch: int
    """Passes over each global batch."""
    max_batch_size: int
    """Most environments in one forward pass of an inference rank, with level 2."""
    normalizes: bool
    """True if advantages are normalised over the whole batch; GRPO normalises within each group instead."""
    seed: int
    steps_per_decision: int = 1
    """Environment steps in one decision, which may be a chunk of actions."""
    buckets: tuple[int, ...] = ()
    """Sizes that batches are padded to, ascending; empty if policies take batches of any size, one size if
    they are captured as CUDA graphs."""
    save_every: int = 0
    """Steps from one checkpoint to the next; 0 if there are none, or only one after the last step."""
    skips_ended: bool = False
    """True if a rollout makes no steps and decisions for ended episodes; learners mask these samples."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """Samples that are not trained, as they have no gradient."""
    shard_choices: tuple[int, ...] = ()
    """Numbers of shards per env worker that the run may choose from after its first steps; see
    `core.shard_fit`. Empty if the number is fixed."""
    learner_scores: str = ""
    """Why inference ranks must not score for the learner; "" if they may."""

    def with_shards(self, shards_per_worker: int) -> Self:
        """Return the settings of the run after shards were joined."""
        count = shards_per_worker
        choices = tuple(c for c in self.shard_choices if c < count and count % c == 0)
        return replace(self, plan=self.plan.joined(count), shard_choices=choices)

    def common(self) -> RunSettings:
        """Return these settings without those that a host has added."""
        return RunSettings(**{each.name: getattr(self, each.name) for each in fields(RunSettings)})

    @property
    def samples_per_batch(self) -> int:
        """Samples of one global batch, over all learner ranks."""
        return self.plan.trajectories_per_batch * self.horizon

    @property
    def probe_size(self) -> int:
        """Samples of a batch that one learner rank scores to compare policies, at least 1.

        Scoring one sample in a hundred takes a few thousandths of the time of training on all samples.
        """
        return min(MAX_PROBE_SAMPLES, max(1, self.samples_per_batch // self.plan.learner_ranks // 100))

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps in one pass over a global batch."""
        return self.samples_per_batch // self.global_batch_size

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches of one learner rank in one optimizer step."""
        return self.global_batch_size // (self.micro_batch_size * self.plan.learner_ranks)

    @property
    def streams(self) -> bool:
        """True if gradients are accumulated before the batch is complete."""
        is_deferred = self.normalizes and self.asynchrony.advanced.defers(self.update_epoch)
        return self.asynchrony.streamer.enabled and not is_deferred

    @property
    def spreads_steps(self) -> bool:
        """True if every piece gives an equal share to each of several optimizer steps."""
        return self.streams and self.optimizer_steps > 1

    @property
    def scored_by_inference(self) -> bool:
        """True if idle inference ranks score pieces while the learner works on others."""
        return self.anchors_ahead and self.asynchrony.rollout.enabled and not self.learner_scores

    @property
    def pieces_taken_together(self) -> int:
        """Pieces that a learner rank takes in at once: as many as fill a micro-batch with level 3, else
        all."""
        if not self.asynchrony.streamer.enabled:
            return self.plan.pieces_per_rank
        # Rounded up, so that a micro-batch is full.
        return -(-self.micro_batch_size // (self.plan.piece_size * self.horizon))

    @property
    def anchors_ahead(self) -> bool:
        """True if level 3 makes anchors before the batch is complete."""
        return self.asynchrony.recomputes and self.asynchrony.streamer.enabled

    @property
    def pieces_anchored_ahead(self) -> int:
        """Most pieces that a learner rank can anchor before the last piece of a batch has arrived."""
        if not self.anchors_ahead:
            return 0
        together = self.pieces_taken_together
        # All pieces but the last, in whole groups of pieces that are taken in together.
        return (self.plan.pieces_per_rank - 1) // together * together

    def compares_versions(self, trained_bytes: float) -> bool:
        """Return True if a learner rank with `trained_bytes` of trained weights scores samples with the past
        policies that drew them.
        """
        return self.asynchrony.off_policy and self.asynchrony.advanced.compares_versions(trained_bytes)

    def remembered_versions(self, trained_bytes: float) -> int:
        """Return the versions of its `trained_bytes` of trained weights that a learner rank keeps to
        measure ratios: the version that begins a batch, and those that may have sampled for it.
        """
        return self.asynchrony.max_staleness + 1 if self.compares_versions(trained_bytes) else 0

    @property
    def restartable(self) -> frozenset[str]:
        """The groups of processes, of "env" and "inference", that are started again if one dies."""
        return frozenset({"env", "inference"} if self.asynchrony.survive.process_restarts else ())

    @property
    def renews(self) -> bool:
        """True if a run that is resumed from a regular checkpoint continues bit for bit.

        All state that a checkpoint cannot hold is then renewed at each checkpoint, in every run.
        """
        return self.asynchrony.deterministic and self.save_every > 0

    def renews_at(self, version: int) -> bool:
        """Return True if a checkpoint is due after `version` has been trained, and state is renewed there."""
        return self.renews and version > 0 and version % self.save_every == 0

    def facts(self) -> dict[str, Any]:
        """Return the facts of the run that readers of its run directory need, as plain data."""
        return {
            "levels": self.asynchrony.levels,
            "max_staleness": self.asynchrony.max_staleness,
            "steps": self.batches,
            "plan": asdict(self.plan),
            "horizon": self.horizon,
            "max_batch_size": self.max_batch_size,
            "max_wait_s": self.asynchrony.rollout.max_wait,
            "micro_batch_size": self.micro_batch_size,
            "optimizer_steps": self.optimizer_steps,
            "learner_scores": self.learner_scores,
            "skips_ended": self.skips_ended,
            "trains_live_only": self.left_out.masked,
        }
