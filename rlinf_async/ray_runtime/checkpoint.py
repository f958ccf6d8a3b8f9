"""The plugin's own part of a checkpoint: the version and the ledger."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.observe.plain_data import DamagedError, read_json_file

STATE_FILE = "async_state.json"
LEDGER_COUNTS = ("produced", "trained", "env_steps_trained")
OTHER_CHECKPOINT_REMEDY = "go on from another checkpoint"


def write_ledger(directory: Path, *, version: int, ledger: Ledger) -> None:
    """Write the version and the ledger."""
    state = {
        "version": version,
        "produced": ledger.produced,
        "trained": ledger.trained,
        "env_steps_trained": ledger.env_steps_trained,
        "refused": dict(ledger.refused),
    }
    (directory / STATE_FILE).write_text(json.dumps(state, indent=2) + "\n")


def read_ledger(directory: Path) -> Ledger:
    """The books at a checkpoint; empty where it has none, as those of a framework's own runs.

    Raises:
        ValueError: there is a file that holds no books.
    """
    path = Path(directory) / STATE_FILE
    try:
        state = read_json_file(path)
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; {OTHER_CHECKPOINT_REMEDY}") from error
    except DamagedError as error:
        raise ValueError(f"{path} {error}; {OTHER_CHECKPOINT_REMEDY}") from error
    counts: dict[str, Any] = (
        {name: state.get(name) for name in LEDGER_COUNTS} if isinstance(state, dict) else {}
    )
    refused = state.get("refused") if isinstance(state, dict) else None
    if not isinstance(refused, dict) or not all(map(_is_count, (*counts.values(), *refused.values()))):
        raise ValueError(
            f"{path} lacks counts of trajectories ({', '.join(LEDGER_COUNTS)}, refused); "
            f"{OTHER_CHECKPOINT_REMEDY}"
        )
    return Ledger(**counts, refused=Counter(refused))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
