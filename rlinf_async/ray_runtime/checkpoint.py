"""What a checkpoint keeps beside the framework's own files: the version and the ledger."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from rlinf_async.core.buffer import Ledger

FILE = "async_state.json"


def write_ledger(directory: Path, *, version: int, ledger: Ledger) -> None:
    """Write the version and the ledger."""
    state = {
        "version": version,
        "produced": ledger.produced,
        "trained": ledger.trained,
        "env_steps_trained": ledger.env_steps_trained,
        "refused": dict(ledger.refused),
    }
    (directory / FILE).write_text(json.dumps(state, indent=2) + "\n")


def read_ledger(directory: Path) -> Ledger:
    """The books at a checkpoint; empty where it has none, as those of a framework's own runs."""
    path = Path(directory) / FILE
    if not path.exists():
        return Ledger()
    state = json.loads(path.read_text())
    return Ledger(
        produced=state["produced"],
        trained=state["trained"],
        env_steps_trained=state["env_steps_trained"],
        refused=Counter(state["refused"]),
    )
