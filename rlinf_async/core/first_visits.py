"""An anchor that costs no pass: the policy that trains a sample first."""

from __future__ import annotations

import torch


class FirstVisits:
    """`log pi_prox` of every sample of a batch, noted where a training pass comes by it first.

    Until the first optimizer step of a batch, the policy that trains is the one that began it: there this
    is the recomputed anchor, without its pass. A sample that is trained first after some steps is anchored
    at the policy they have made, so that its first ratio is 1, too, and the clip bounds later epochs alone.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the batch before: no sample of the one that begins has been trained."""
        self._count = 0
        self._anchors: torch.Tensor | None = None
        self._visited = torch.zeros(0, dtype=torch.bool)

    def number(self, steps: int, width: int) -> torch.Tensor:
        """Numbers of the samples of a rollout, [steps, width], which no other sample of the batch has."""
        first = self._count
        self._count += steps * width
        return torch.arange(first, self._count).view(steps, width)

    def anchor(self, numbers: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
        """`log pi_prox` of the samples with these numbers, detached: `current` of those that are new.

        Args:
            numbers: [N], as `number` gave them.
            current: log-probabilities by the policy that is trained now, [N, ...].
        """
        current = current.detach()
        anchors = self._grown(current)
        numbers = numbers.to(anchors.device)
        new = ~self._visited[numbers]
        anchors[numbers[new]] = current[new]
        self._visited[numbers] = True
        return anchors[numbers]

    def _grown(self, like: torch.Tensor) -> torch.Tensor:
        """The anchors, with room for all samples that have a number; pieces arrive while others train."""
        if self._anchors is None:
            self._anchors = like.new_zeros(0, *like.shape[1:])
            self._visited = self._visited.to(like.device)
        missing = self._count - len(self._anchors)
        if missing:
            self._anchors = torch.cat([self._anchors, like.new_zeros(missing, *like.shape[1:])])
            self._visited = torch.cat([self._visited, self._visited.new_zeros(missing)])
        return self._anchors
