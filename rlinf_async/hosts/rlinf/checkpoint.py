"""What a checkpoint keeps beside RLinf's own: the version and the books."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from rlinf_async.core.buffer import Ledger

FILE = "async_state.json"


def write_ledger(directory: Path, *, version: int, ledger: Ledger) -> None:
    """Write the state of the gate and the buffer; rollouts in flight are not part of a checkpoint."""
    state = {
        "version": version,
        "produced": ledger.produced,
        "trained": ledger.trained,
        "env_steps_trained": ledger.env_steps_trained,
        "refused": dict(ledger.refused),
    }
    (directory / FILE).write_text(json.dumps(state, indent=2) + "\n")


def read_ledger(directory: str | None) -> Ledger:
    """The books at a checkpoint; what was in flight then is lost, and said so. Empty without one."""
    path = Path(directory) / FILE if directory else None
    if path is None or not path.exists():
        return Ledger()
    state = json.loads(path.read_text())
    ledger = Ledger(
        produced=state["produced"],
        trained=state["trained"],
        env_steps_trained=state["env_steps_trained"],
        refused=Counter(state["refused"]),
    )
    if ledger.in_flight:
        ledger.refused["lost at resume"] += ledger.in_flight
    return ledger


def resume_step(directory: str | None) -> int:
    """The step at which RLinf's `runner.resume_dir` (`.../global_step_N`) was saved; 0 without one.

    Raises:
        ValueError: the directory does not end in `global_step_N`, or has no actor checkpoint.
    """
    if not directory:
        return 0
    match = re.search(r"global_step_(\d+)/?$", str(directory))
    if match is None:
        raise ValueError(f"runner.resume_dir={directory!r} must end in global_step_N")
    if not (Path(directory) / "actor").is_dir():
        raise ValueError(f"runner.resume_dir={directory!r} has no directory actor")
    return int(match.group(1))
