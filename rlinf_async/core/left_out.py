"""Samples without a gradient, which are left out of training; `core.packing` packs the others.

Imports no torch, as run settings use it and are read where torch is not imported.
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
    """True leaves out samples with an empty mask."""
    silent: bool = False
    """True leaves out samples with an advantage of 0, as in a group of equal scores."""
    mixes: bool = True
    """False if a part of the loss is a mean over the rows of a pass. A pass then has rows of one micro-batch
    only, so that fewer rows are computed, in as many passes."""

    def __bool__(self) -> bool:
        return self.masked or self.silent

    def live(self, mask: torch.Tensor | None, advantages: torch.Tensor | None) -> torch.Tensor | None:
        """Return a mask of the samples that the run trains; see `live_rows`."""
        return live_rows(mask if self.masked else None, advantages if self.silent else None)


def live_rows(mask: torch.Tensor | None, advantages: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return a mask of the samples that have a gradient, [N] bool; None if all have one.

    Args:
        mask: [N, ...], false where the loss leaves an entry out; None if it leaves out none.
        advantages: [N, ...], broadcast against `mask`; None if the loss is not proportional to them.
    """
    entries = None if mask is None else mask.bool()
    if advantages is not None:
        # A NaN advantage counts as live, so that it is found later.
        nonzero = advantages != 0
        entries = nonzero if entries is None else nonzero & entries.to(nonzero.device)
    return None if entries is None else entries.reshape(len(entries), -1).any(dim=1)
