"""The bytes of a policy on an accelerator: weights, gradients, moments and copies, without activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["full_shard", "shard_grad_op", "no_shard"]
"""The state that is sharded over the ranks of a data-parallel learner: all of it (`full_shard`), all but the
weights of a pass (`shard_grad_op`), none (`no_shard`)."""

ADAM_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class LearnerFootprint:
    """One rank of a data-parallel learner that trains with Adam.

    Not counted: layers that are gathered for their own pass only, and everything that grows with a
    micro-batch.
    """

    parameters: int
    trainable: int
    stored: int
    """Bytes per parameter of the optimizer's weights, of their gradients, and of each of their moments."""
    computed: int
    """Bytes per parameter of the type that passes compute with."""
    ranks: int
    strategy: Strategy
    accumulates: bool
    """True if a rank sums the gradients of several micro-batches before they are reduced over ranks."""
    on_cpu: bool = False
    """True if weights, gradients and moments stay in CPU memory between uses."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks={self.ranks} must be at least 1; nearest: 1")
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"strategy={self.strategy!r} must be one of {', '.join(get_args(Strategy))}")

    def parts(self) -> dict[str, int]:
        """Bytes of this rank on its accelerator, for `weights`, `gradients` and `optimizer` (moments)."""
        copies = 0 if self.on_cpu else 1
        return {
            "weights": copies * self._share(self.parameters * self.stored) + self._copy(),
            "gradients": copies * self.trained + self._unshared_gradients(),
            "optimizer": copies * ADAM_MOMENTS * self.trained,
        }

    @property
    def trained(self) -> int:
        """Bytes of this rank's shards of the trainable weights."""
        return self._share(self.trainable * self.stored)

    @property
    def _shares(self) -> bool:
        return self.ranks > 1 and self.strategy != "no_shard"

    def _share(self, size: int) -> int:
        """The bytes of `size` that one rank keeps, rounded up."""
        return -(-size // self.ranks) if self._shares else size

    def _copy(self) -> int:
        """The bytes of all weights in the type that passes compute with; 0 if passes use the optimizer's
        weights themselves.
        """
        # Of the strategies that shard, only `shard_grad_op` holds all weights of a pass at once, whatever
        # their type; `full_shard` gathers them layer by layer.
        separate = self.strategy == "shard_grad_op" if self._shares else self.computed != self.stored
        return self.parameters * self.computed if separate else 0

    def _unshared_gradients(self) -> int:
        return self.trainable * self.computed if self._shares and self.accumulates else 0


def peak(parts: Mapping[str, int], *, learner_leaves: bool, inference_leaves: bool) -> int:
    """The most bytes at any time, if learner or inference may leave the accelerator while the other works.

    If only one of the two leaves, both are there while that one works.
    """
    inference = parts.get("inference", 0)
    learner = sum(parts.values()) - inference
    return max(learner, inference) if learner_leaves and inference_leaves else learner + inference


def accelerator_bytes(
    learner: Mapping[str, int], inference: int, *, learners: int, policies: int
) -> dict[str, int]:
    """Return the bytes, by part, of an accelerator that holds `learners` learner ranks and `policies`
    inference ranks. A part without ranks is left out.

    Args:
        learner: bytes of one learner rank by part, as `LearnerFootprint.parts` returns them.
        inference: bytes of one inference rank.
    """
    parts = {name: learners * size for name, size in learner.items()} if learners else {}
    return {**parts, "inference": policies * inference} if policies else parts
