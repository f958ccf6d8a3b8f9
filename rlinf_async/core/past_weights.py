"""Past weights of the policy, to score actions with the version that took them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from rlinf_async.core.host_memory import copy_all, exchange_all, host_tensors

Copy = list[torch.Tensor]


class PastWeights:
    """Copies on the CPU of a policy's trainable parameters, for the last `keep` versions remembered.

    `parameters` returns the tensors of the parameters, always in the same order; of a policy that is sharded
    over ranks, the shards of this rank. A copy is written once per version, into memory that is allocated
    once, page-locked if the parameters are on a CUDA device. The device never holds a second copy: `visit`
    keeps the present parameters on the CPU while the device has past ones.
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
        """The remembered version that equals the present parameters; None if that is not known."""
        return self._present

    def __contains__(self, version: int) -> bool:
        return version in self._copies

    def remember(self, version: int) -> None:
        """Copy the parameters as those of `version`; they stay that version until `changed` is called."""
        # Before `_save`, which reuses the memory freed here instead of allocating more.
        if version not in self._copies and len(self._copies) == self._keep:
            self._spare.append(self._copies.pop(min(self._copies)))
        if version in self._copies:
            # `_save` reuses this memory, so that a version is held once.
            self._spare.append(self._copies.pop(version))
        self._copies[version] = self._save()
        self._present = version

    def changed(self) -> None:
        """The present parameters may have changed, so that they equal no remembered version."""
        self._present = None

    def forget(self) -> None:
        """Forget every version; the memory is kept for later copies."""
        self._spare += self._copies.values()
        self._copies.clear()
        self._present = None

    def visit(self, versions: Iterable[int], visitor: Callable[[int], None], *, present: int) -> None:
        """Call `visitor` with each remembered version among `versions`, oldest first, while the policy has
        the parameters of that version. Then restore the present parameters, and remember them as version
        `present`.

        As with `remember`, the oldest version is dropped if there are `keep` already, but only after its
        visit: it changes places with the present parameters, so that `keep` copies are memory enough.
        """
        order = sorted(version for version in set(versions) if version in self._copies)
        if not order:
            self.remember(present)
            return
        swapped: int | None = None
        if order[0] == min(self._copies) and len(self._copies) == self._keep and present not in self._copies:
            swapped = order[0]
            self._copies[present] = self._copies.pop(swapped)
            # Now the device holds version `swapped`, and the memory of its copy holds the present parameters.
            exchange_all(self._parameters(), self._copies[present])
        else:
            self.remember(present)
        # Not true before the end of the visits: until then the device has other weights.
        self._present = present
        try:
            for version in order:
                if version != swapped:
                    copy_all(self._parameters(), self._copies[version])
                visitor(version)
        finally:
            # Also after an error: nothing would notice if training went on with past weights.
            copy_all(self._parameters(), self._copies[present])

    def _save(self) -> Copy:
        parameters = self._parameters()
        places = self._spare.pop() if self._spare else _places(parameters)
        copy_all(places, parameters)
        return places


def _places(parameters: Sequence[torch.Tensor]) -> Copy:
    page_locked = any(tensor.is_cuda for tensor in parameters)
    return host_tensors(((tensor.shape, tensor.dtype) for tensor in parameters), pinned=page_locked)
