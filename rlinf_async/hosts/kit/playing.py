"""The environments of a shard that play on after the episodes of others have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.core.tensors import Tree, with_rows
from rlinf_async.hosts.observations import items


@dataclass(frozen=True, kw_only=True)
class Playing:
    """The environments that play on after an output. The other environments wait for a reset."""

    numbers: tuple[int, ...]
    """Indices in the shard, in ascending order."""
    others_stand: bool = False
    """True if the other environments are not stepped."""

    @classmethod
    def after(cls, over: torch.Tensor, *, others_stand: bool = False) -> Playing | None:
        """Return the environments that are not `over`, [B] bool; None if all play on."""
        if not over.any():
            return None
        return cls(numbers=tuple((~over).nonzero().flatten().tolist()), others_stand=others_stand)

    def of(self, shown: Any) -> Any:
        """Return the items of the playing environments, from an observation of all environments."""
        return items(shown, self.numbers)

    def among(self, before: Tree, own: Tree) -> Tree:
        """Return [B, ...]: the rows `own` [n, ...] of the playing environments, and rows of `before` for the
        others.
        """
        return with_rows(before, own, torch.tensor(self.numbers, dtype=torch.long))


def as_they_ended(
    now: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor], *, over: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return statistics [B, ...] of episodes: from `before` for environments that were `over` [B] bool, else
    from `now`.
    """
    result = dict(now)
    for name in now.keys() & before.keys():
        rows = over.reshape(-1, *[1] * (now[name].dim() - 1))
        result[name] = torch.where(rows, before[name], now[name])
    return result
