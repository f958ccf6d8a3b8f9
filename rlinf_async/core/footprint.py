"""The bytes of a policy on an accelerator: weights, gradients, moments and copies, without activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["full_shard", "shard_grad_op", "no_shard"]
"""The state that the ranks of a data-parallel learner share: all of it, all but the weights of a pass,
none."""

ADAM_MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class LearnerFootprint:
    """One rank of a data-parallel learner that trains by Adam.

    Layers that are gathered for their own pass only, and everything that grows with a micro-batch, are not
    counted.
    """

    parameters: int
    trainable: int
    stored: int
    """Bytes per parameter of the weights that are stepped, of their gradients and of their moments."""
    computed: int
    """Bytes per parameter in which passes compute."""
    ranks: int
    strategy: Strategy
    accumulates: bool
    """True if a rank sums the gradients of several micro-batches before it shares them."""
    on_cpu: bool = False
    """True if weights, gradients and moments stay in the memory of the CPU between uses."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks={self.ranks} must be at least 1; nearest: 1")
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"strategy={self.strategy!r} must be one of {', '.join(get_args(Strategy))}")

    def parts(self) -> dict[str, int]:
        """Bytes of this rank on its accelerator: of `weights`, `gradients` and `optimizer` moments."""
        copies = 0 if self.on_cpu else 1
        return {
            "weights": copies * self._share(self.parameters * self.stored) + self._copy(),
            "gradients": copies * self.trained + self._unshared_gradients(),
            "optimizer": copies * ADAM_MOMENTS * self.trained,
        }

    @property
    def trained(self) -> int:
        """Bytes of this rank's shards of the weights that are trained."""
        return self._share(self.trainable * self.stored)

    @property
    def _shares(self) -> bool:
        return self.ranks > 1 and self.strategy != "no_shard"

    def _share(self, size: int) -> int:
        """The bytes of `size` that one rank keeps, rounded up."""
        return -(-size // self.ranks) if self._shares else size

    def _copy(self) -> int:
        """The bytes of all weights in the type that passes compute with; 0 where the rank computes with the
        weights that it steps.
        """
        # Of sharding strategies `shard_grad_op` alone has all weights of a pass at a time, whatever their
        # type; `full_shard` gathers them layer by layer.
        separate = self.strategy == "shard_grad_op" if self._shares else self.computed != self.stored
        return self.parameters * self.computed if separate else 0

    def _unshared_gradients(self) -> int:
        return self.trainable * self.computed if self._shares and self.accumulates else 0


def peak(parts: Mapping[str, int], *, learner_leaves: bool, inference_leaves: bool) -> int:
    """The most bytes at any time, where a part may be moved off the accelerator while the other works.

    Where only one of them leaves for the other, all are there while that one works.
    """
    inference = parts.get("inference", 0)
    learner = sum(parts.values()) - inference
    return max(learner, inference) if learner_leaves and inference_leaves else learner + inference


def together(learner: Mapping[str, int], inference: int, *, learners: int, policies: int) -> dict[str, int]:
    """Return the bytes of an accelerator, by part, that holds `learners` learner ranks and `policies`
    inference ranks; a part without ranks is left out.
    """
    parts = {name: learners * size for name, size in learner.items()} if learners else {}
    return {**parts, "inference": policies * inference} if policies else parts
