"""Which samples are left out of training, as they have no gradient; `core.packing` packs the others.

Settings of runs name this, which are read where torch is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """The samples that a run leaves out of training, because they have no gradient."""

    masked: bool = False
    """Those whose mask is empty."""
    silent: bool = False
    """Those whose advantage is 0, as in a group of equal scores."""
    mixes: bool = True
    """False if a part of the loss is a mean over the rows of a pass, which are those of one micro-batch then:
    fewer rows are computed, in as many passes."""

    def __bool__(self) -> bool:
        return self.masked or self.silent

    def live(self, mask: torch.Tensor | None, advantages: torch.Tensor | None) -> torch.Tensor | None:
        """Return which samples a run trains, as `live_rows` does."""
        return live_rows(mask if self.masked else None, advantages if self.silent else None)


def live_rows(mask: torch.Tensor | None, advantages: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return which of N samples have a gradient, [N] bool; None where all have.

    Args:
        mask: [N, ...], false where the loss leaves an entry out; None where it leaves out none.
        advantages: [N, ...], where the loss is proportional to them; they broadcast against `mask`.
    """
    entries = None if mask is None else mask.bool()
    if advantages is not None:
        # NaN is no 0, and goes on to where it is noticed.
        moving = advantages != 0
        entries = moving if entries is None else moving & entries.to(moving.device)
    return None if entries is None else entries.reshape(len(entries), -1).any(dim=1)
