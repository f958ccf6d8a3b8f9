"""The policy as it was, to ask it again what it thinks of its actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch


class PastWeights:
    """Copies of a policy's trainable parameters on the CPU, of the last `keep` versions remembered.

    `parameters` gives the tensors that hold them, always in the same order; where the policy is sharded
    over ranks, the shards of this rank.
    """

    def __init__(self, parameters: Callable[[], Sequence[torch.Tensor]], *, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self._parameters = parameters
        self._keep = keep
        self._copies: dict[int, list[torch.Tensor]] = {}

    def __contains__(self, version: int) -> bool:
        return version in self._copies

    def remember(self, version: int) -> None:
        """The present parameters are those of `version`."""
        self._copies[version] = self._copy("cpu")
        while len(self._copies) > self._keep:
            del self._copies[min(self._copies)]

    @contextmanager
    def at(self, version: int) -> Iterator[None]:
        """The block in which the policy has the parameters of `version`.

        Raises:
            KeyError: it is not remembered.
        """
        past, present = self._copies[version], self._copy()
        self._write(past)
        try:
            yield
        finally:
            self._write(present)

    def _copy(self, device: str | None = None) -> list[torch.Tensor]:
        return [tensor.detach().to(device, copy=True) for tensor in self._parameters()]

    @torch.no_grad()
    def _write(self, values: Sequence[torch.Tensor]) -> None:
        for tensor, value in zip(self._parameters(), values, strict=True):
            tensor.copy_(value)
