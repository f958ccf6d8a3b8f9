"""Environments of a shard whose episodes go on, while others' have ended and nothing counts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.core.tensors import Tree, with_rows
from rlinf_async.hosts.observations import items


@dataclass(frozen=True, kw_only=True)
class Playing:
    """The environments that play on after an output; the others have ended, and wait for a reset."""

    numbers: tuple[int, ...]
    """In ascending order, counted in the shard."""
    others_stand: bool = False
    """True if the others are not stepped."""

    @classmethod
    def after(cls, over: torch.Tensor, *, others_stand: bool = False) -> Playing | None:
        """Those that are not `over`, [B] bool; None where all play on."""
        if not over.any():
            return None
        return cls(numbers=tuple((~over).nonzero().flatten().tolist()), others_stand=others_stand)

    def of(self, shown: Any) -> Any:
        """The items of those that play, of an observation with an item for each environment."""
        return items(shown, self.numbers)

    def among(self, before: Tree, own: Tree) -> Tree:
        """`own` [n, ...] of those that play, with what the others had `before`: [B, ...]."""
        return with_rows(before, own, torch.tensor(self.numbers, dtype=torch.long))


def as_they_ended(
    now: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor], *, over: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return statistics [B, ...] of episodes, as `before` of environments that were `over`, [B] bool."""
    result = dict(now)
    for name in now.keys() & before.keys():
        rows = over.reshape(-1, *[1] * (now[name].dim() - 1))
        result[name] = torch.where(rows, before[name], now[name])
    return result
