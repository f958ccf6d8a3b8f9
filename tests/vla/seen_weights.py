"""An extension module for RLinf (`RLINF_EXT_MODULE`) that keeps what the learner publishes.

Publication N of a process lies in the folder that SEEN_WEIGHTS names, as `N.pt`: weights by their names.
"""

import os
from pathlib import Path

import torch

FOLDER = "SEEN_WEIGHTS"


def register() -> None:
    from rlinf_async.hosts.rlinf.weights import Snapshot

    take, folder = Snapshot.take, Path(os.environ[FOLDER])

    def keep(snapshot: Snapshot) -> list:
        chunks = take(snapshot)
        made = {name: weight.clone() for chunk in chunks for name, weight in chunk.items()}
        torch.save(made, folder / f"{len(list(folder.iterdir()))}.pt")
        return chunks

    Snapshot.take = keep


def seen(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Every publication, the first one first."""
    return [torch.load(folder / f"{number}.pt") for number in range(len(list(folder.iterdir())))]
