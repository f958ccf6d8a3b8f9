"""The policy as it was, to ask it again what it thinks of its actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from rlinf_async.core.host_memory import copy_all, exchange_all, host_tensors

Copy = list[torch.Tensor]


class PastWeights:
    """Copies of a policy's trainable parameters on the CPU, of the last `keep` versions remembered.

    `parameters` gives the tensors that hold them, always in the same order; where the policy is sharded
    over ranks, the shards of this rank. A copy is written once per version, into memory that is allocated
    once, page-locked where parameters are on a CUDA device. The device never holds a second copy: the
    present parameters come back from the CPU, where they are remembered or are put while they are away.
    """

    def __init__(self, parameters: Callable[[], Sequence[torch.Tensor]], *, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self._parameters = parameters
        self._keep = keep
        self._copies: dict[int, Copy] = {}
        self._spare: list[Copy] = []
        self._present: int | None = None

    @property
    def present(self) -> int | None:
        """The remembered version that the present parameters are, if they are known to be one."""
        return self._present

    def __contains__(self, version: int) -> bool:
        return version in self._copies

    def remember(self, version: int) -> None:
        """Copy the parameters as those of `version`, which they are until `changed` is called."""
        # Before `_save`, which takes the memory that is spared here instead of allocating more.
        if version not in self._copies and len(self._copies) == self._keep:
            self._spare.append(self._copies.pop(min(self._copies)))
        if version in self._copies:
            # Its memory is the next that `_save` takes: a version is held once.
            self._spare.append(self._copies.pop(version))
        self._copies[version] = self._save()
        self._present = version

    def changed(self) -> None:
        """The present parameters may no longer be those of a version that is remembered."""
        self._present = None

    def forget(self) -> None:
        """Remember no version, as at the start; the memory of the copies is kept for others."""
        self._spare += self._copies.values()
        self._copies.clear()
        self._present = None

    def visit(self, versions: Iterable[int], visitor: Callable[[int], None], *, present: int) -> None:
        """Call `visitor` with each of `versions` that is remembered, oldest first, while the policy has its
        parameters; then the present ones come back, and are remembered as those of version `present`.

        The oldest version that is remembered gives way to them, as with `remember`, but not before it was
        visited: the two change places, so that no memory beyond that of `keep` copies is needed.
        """
        order = sorted(version for version in set(versions) if version in self._copies)
        if not order:
            self.remember(present)
            return
        swapped: int | None = None
        if order[0] == min(self._copies) and len(self._copies) == self._keep and present not in self._copies:
            swapped = order[0]
            self._copies[present] = self._copies.pop(swapped)
            # The device now holds version `swapped`, and its former place on the CPU the present parameters.
            exchange_all(self._parameters(), self._copies[present])
        else:
            self.remember(present)
        # Ahead of time: until the visits are over the device has other weights.
        self._present = present
        try:
            for version in order:
                if version != swapped:
                    copy_all(self._parameters(), self._copies[version])
                visitor(version)
        finally:
            # Even after an error: training on past weights would go unnoticed.
            copy_all(self._parameters(), self._copies[present])

    def _save(self) -> Copy:
        parameters = self._parameters()
        places = self._spare.pop() if self._spare else _places(parameters)
        copy_all(places, parameters)
        return places


def _places(parameters: Sequence[torch.Tensor]) -> Copy:
    page_locked = any(tensor.is_cuda for tensor in parameters)
    return host_tensors(((tensor.shape, tensor.dtype) for tensor in parameters), pinned=page_locked)
