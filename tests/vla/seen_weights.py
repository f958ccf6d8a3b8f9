"""An extension module for RLinf (`RLINF_EXT_MODULE`) that keeps what the learner publishes.

Publication N of a process lies in the folder that SEEN_WEIGHTS names, as `N.pt`: weights by their names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.learner import Snapshot
    from rlinf_async.ray_runtime.publication.weights import WeightSnapshot

FOLDER = "SEEN_WEIGHTS"


def register() -> None:
    from rlinf_async.hosts.rlinf.learner import Snapshot

    take, folder = Snapshot.take, Path(os.environ[FOLDER])

    def keep(snapshot: Snapshot) -> WeightSnapshot | None:
        taken = take(snapshot)
        made = {name: weight.clone() for name, weight in taken.tensors.items()} if taken else {}
        torch.save(made, folder / f"{len(list(folder.iterdir()))}.pt")
        return taken

    Snapshot.take = keep


def seen(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Every publication, the first one first."""
    return [torch.load(folder / f"{number}.pt") for number in range(len(list(folder.iterdir())))]
