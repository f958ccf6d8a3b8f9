"""The choice of a learner's weights to send, and the memory that they are copied to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from rlinf_async.ray_runtime.weights import Chunk, Types, chunks_of, places_for


class CopiedWeights:
    """The part of a `WeightCopy` that is the same in every host, which reads the tensors of its learner.

    The first copy holds all weights, so that the receivers' frozen ones are the learner's, too; later copies
    hold the tensors that training changes: trained parameters and buffers. The memory of later copies is
    allocated once, page-locked where there is an accelerator, and written again by each copy.
    """

    def __init__(self) -> None:
        self.types: Types = {}
        self._memory: Chunk = {}
        self._complete = False
        self._later: list[str] = []

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

    def places(self, tensors: Mapping[str, torch.Tensor], types: Types | None = None) -> Chunk:
        """CPU memory to copy `tensors` to, in its `types`: those that the receivers have, or others."""
        self._memory = places_for(tensors, self.types if types is None else types, self._memory)
        return self._memory

    def copied(self) -> list[Chunk]:
        """The copy is complete: what is in its places, in chunks of bounded size."""
        chunks = chunks_of(self._memory)
        self._complete = True
        if self._memory.keys() != set(self._later):
            # The first copy is larger than all later ones: its memory would stay unused.
            self._memory = {}
        return chunks


def write(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy `tensor`, converted on its own device; it may go on after this has returned."""
    # Converted on the device first, so that fewer bytes travel; the caller waits for the stream before
    # anything reads `place`.
    place.copy_(tensor.detach().to(place.dtype), non_blocking=True)
