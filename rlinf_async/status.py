"""What `rlinf-async status` shows: a run from outside, while it goes on or after it has stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf_async.core.status import STACKS_SIGNAL, seconds, who_does_what

STALE_S = 20.0
"""The driver writes every few seconds; after this time it does not write any more."""
ANSWER_S = 3.0
"""How long to wait for stacks: a process writes them at once, if it lives."""


def status_of(run: Path, *, now: float | None = None) -> list[str]:
    """What a run does, line by line.

    Raises:
        ValueError: there is no such run, or it has not said anything yet.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is no directory; name the run directory, which holds config.yaml")
    said = _read(run / "status.json")
    summary = _read(run / "summary.json")
    if summary is not None:
        took, books = seconds(float(summary.get("seconds", 0))), summary.get("trajectories", {})
        trained = f"{books.get('trained')} of {books.get('produced')} trajectories trained"
        return [f"The run has ended: {summary.get('steps')} steps in {took}, {trained}."]
    if said is None:
        raise ValueError(f"{run} says nothing about itself: {_reason(run)}")
    age = (time.time() if now is None else now) - said["time"]
    lines = [f"step {said['step']} of {said['total']}; {_moves(said, age)}"]
    lines += [f"  {name}: {line}" for name, line in who_does_what(said["processes"])]
    return lines


def stacks_of(run: Path) -> Iterator[tuple[str, str]]:
    """The name of every process of the run on this machine, and the stacks of its threads right now.

    A process is asked by a signal, and only if it holds the file open that it answers into: a number that
    another process has got since is left alone.
    """
    for path in sorted((run / "stacks").glob("*.txt")):
        name, _, pid = path.stem.rpartition("-")
        if not _holds(int(pid), path):
            continue
        before = path.stat().st_size
        os.kill(int(pid), getattr(signal, STACKS_SIGNAL))
        yield name.replace("-", " "), _appended(path, before)


def _appended(path: Path, before: int) -> str:
    give_up, size = time.monotonic() + ANSWER_S, before
    while time.monotonic() < give_up:
        time.sleep(0.05)
        last, size = size, path.stat().st_size
        if size > before and size == last:
            break
    with path.open() as file:
        file.seek(before)
        return file.read().strip() or "it does not answer"


def _holds(pid: int, path: Path) -> bool:
    try:
        return any(link.resolve() == path.resolve() for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # it has ended, or is somebody else's


def _moves(said: dict[str, Any], age: float) -> str:
    if age > STALE_S:
        return (
            f"the driver (process {said['driver']}) has said nothing for {seconds(age)}: it has died or hangs"
        )
    if said["still_s"] < 1:
        return f"it moves (seen {seconds(age)} ago)"
    return f"nothing has ended for {seconds(said['still_s'])} (seen {seconds(age)} ago)"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _reason(run: Path) -> str:
    if (run / "run.json").exists():
        return "its workers have only just started; ask again in a few seconds"
    return (
        "it is no run directory of rlinf-async, it runs with async.mode=off, or its workers are being built"
    )
