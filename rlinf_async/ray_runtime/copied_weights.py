"""The choice of a learner's weights to send, and the memory that they are copied to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import torch

from rlinf_async.ray_runtime.weight_file import Tensors, WeightVersions, bytes_of, write_head
from rlinf_async.ray_runtime.weights import Taken, Types


class CopiedWeights:
    """The part of a `WeightCopy` that is the same in every host, which reads the tensors of its learner.

    The first copy holds all weights, so that the receivers' frozen ones are the learner's, too; later copies
    hold the tensors that training changes: trained parameters and buffers. There is memory for two of these,
    page-locked where there is an accelerator, which are written by turns.
    """

    def __init__(self) -> None:
        self.types: Types = {}
        self.keeps = False
        self._frozen, self._changing = WeightVersions(changes=False), WeightVersions(changes=True)
        self._complete = False
        self._later: list[str] = []
        self._places: Tensors = {}
        self._finite: dict[torch.device, torch.Tensor] = {}
        self._unseen: list[torch.Tensor] = []

    def choose(self, names: Iterable[str], *, changing: Collection[str]) -> list[str]:
        """Return the names of the tensors that are sent next; training changes those in `changing`.

        Raises:
            ValueError: inference knows none of the names.
        """
        every = list(names)
        trained = [
            name for name in every if "_extra_state" not in name and (not self.types or name in self.types)
        ]
        self._later = [name for name in trained if name in changing]
        tensors = self._later if self._complete else trained
        if not tensors:
            raise ValueError(f"none of the learner's {len(every)} tensors has a name that inference knows")
        return tensors

    def places(self, tensors: Mapping[str, torch.Tensor], types: Types | None = None) -> Tensors:
        """Memory to `write` the `tensors` to.

        A floating-point tensor is held in its type of `types`, unless that is wider than its own; others, and
        those that `types` does not name, in their own. By default they are the types of the receivers.
        """
        types = self.types if types is None else types
        later = set(self._later)
        self._places = {}
        for versions in (self._frozen, self._changing):
            kinds = {
                name: (tensor.shape, _no_wider(types.get(name, tensor.dtype), tensor.dtype))
                for name, tensor in tensors.items()
                if (name in later) == (versions is self._changing)
            }
            if kinds:
                head, size = bytes_of(kinds)
                device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
                self._places |= write_head(versions.begin(size, device=device), head)
        if self._complete and not self.keeps:
            # Every rank has applied the first version before there is a second.
            self._frozen.clear()
        self._finite, self._unseen = {}, []
        return self._places

    def write(self, place: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy `tensor` to its place, and look if it is finite; both may go on after this has returned."""
        if tensor.device.type == "cpu":
            # Whether it is finite is looked at later: here the learner waits.
            place.copy_(tensor.detach())
            self._unseen.append(place)
            return
        # On its device first, so that fewer bytes travel; the caller waits for the stream before anything
        # reads `place`.
        converted = tensor.detach().to(place.dtype)
        place.copy_(converted, non_blocking=True)
        finite, device = _may_be_finite(converted), converted.device
        self._finite[device] = finite & self._finite[device] if device in self._finite else finite

    def copied(self) -> Taken | None:
        """The copy is complete: what is in its places; None if there were none."""
        self._complete = True
        if not self._places:
            return None
        finite = partial(_are_finite, list(self._finite.values()), self._unseen)
        taken, self._places = Taken(self._places, finite, (self._frozen, self._changing)), {}
        return taken


def _may_be_finite(tensor: torch.Tensor) -> torch.Tensor:
    # A sum is quick, and finite if all numbers are, unless it overflows.
    return torch.isfinite(tensor.sum())


def _are_finite(seen: Sequence[torch.Tensor], unseen: Sequence[torch.Tensor]) -> bool:
    return all(bool(found) for found in seen) and all(bool(_may_be_finite(tensor)) for tensor in unseen)


def _no_wider(target: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    return target if dtype.is_floating_point and target.itemsize <= dtype.itemsize else dtype
