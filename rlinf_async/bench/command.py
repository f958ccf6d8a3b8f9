"""What `rlinf-async bench` does: run the cells in turn, show the rows, write them down."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from rlinf_async.bench.board import Board
from rlinf_async.bench.cell import Cell
from rlinf_async.bench.modes import MODES, STANDARD
from rlinf_async.bench.scenarios import SCENARIOS
from rlinf_async.core.names import did_you_mean
from rlinf_async.doctor.vulkan import check_vulkan
from rlinf_async.extras import pip_install
from rlinf_async.hosts.rlinf.compat import check_rlinf
from rlinf_async.simulators.libero import ASSETS_VARIABLE, missing_libero

WARM_UP, STEPS = 3, 4
"""Global steps before the ones that are measured, and those that are."""
QUICK = {"scenarios": ("libero", "balanced"), "modes": ("stock-sync-1", "stock-async", "full")}


def plan(
    *, scenarios: Sequence[str] | None, modes: Sequence[str] | None, quick: bool, repetitions: int | None
) -> list[Cell]:
    """The cells to run, interleaved: every mode that a scenario has before any is repeated.

    Raises:
        ValueError: an unknown scenario or mode, one that cannot run here, no repetition, or no RLinf.
        ModuleNotFoundError: what RLinf runs need is not installed.
    """
    check_rlinf()
    if importlib.util.find_spec("hydra") is None:
        raise ModuleNotFoundError(name="hydra")  # as its import would in every run
    usual = QUICK["scenarios"] if quick else tuple(name for name in SCENARIOS if unavailable(name) is None)
    chosen = _known("scenario", scenarios or usual, SCENARIOS)
    for name in chosen:
        if (reason := unavailable(name)) is not None:
            raise ValueError(f"scenario {name!r} cannot run here: {reason}")
    run = _known("mode", modes or (QUICK["modes"] if quick else STANDARD), MODES)
    count = repetitions if repetitions is not None else (1 if quick else 3)
    if count < 1:
        raise ValueError(f"repetitions={count} must be at least 1")
    return [
        Cell(scenario=scenario, mode=mode, repetition=repetition, warm_up=WARM_UP, steps=STEPS)
        for repetition in range(count)
        for scenario in chosen
        for mode in run
        if mode not in SCENARIOS[scenario].without
    ]


def unavailable(scenario: str) -> str | None:
    """Why a real scenario cannot run on this machine, or None."""
    if scenario == "metaworld" and importlib.util.find_spec("metaworld") is None:
        return f"Meta-World is not installed: {pip_install('metaworld')}"
    if scenario == "libero-real":
        if not os.environ.get(ASSETS_VARIABLE):
            return f"{ASSETS_VARIABLE} names no folder of LIBERO's assets, see docs/install.md"
        return missing_libero()
    if scenario == "maniskill-real":
        if importlib.util.find_spec("mani_skill") is None:
            return "ManiSkill is not installed, see docs/install.md"
        vulkan = check_vulkan()
        return None if vulkan.status == "ok" else f"{vulkan.detail}; {vulkan.mend}"
    return None


def open_board(cells: Sequence[Cell], *, json_path: Path | None) -> tuple[Board, list[Cell]]:
    """What an earlier start wrote beside `json_path`, and those of `cells` that it has not got.

    Raises:
        ValueError: what was written is of other steps.
    """
    board = Board(json_path.with_suffix(".cells.jsonl") if json_path else None)
    return board, list(board.missing(cells))


def run(board: Board, todo: Sequence[Cell], *, json_path: Path | None, console: Console) -> None:
    """Run the cells in turn; with a `json_path`, every result is written when it is there."""
    console.print(f"{len(todo)} runs, one to three minutes each", style="dim")
    for number, cell in enumerate(todo, start=1):
        began = time.monotonic()
        result = cell.run()
        board.add(cell, result)
        said = result.get("error") or f"{result['fresh_steps_per_s']:.0f} fresh env steps/s"
        console.print(
            f"[{number}/{len(todo)}] {cell.scenario} {cell.mode} #{cell.repetition + 1}: {said} "
            f"({time.monotonic() - began:.0f} s)",
            markup=False,
        )
        if json_path is not None:
            write(json_path, board)


def write(path: Path, board: Board) -> None:
    """The rows, and what produced them."""
    content = {
        "command": "rlinf-async bench",
        "versions": {
            "rlinf": check_rlinf().version,
            **{name: version(name) for name in ("rlinf-async", "ray", "torch")},
        },
        "python": platform.python_version(),
        "rows": board.rows(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _known(what: str, names: Sequence[str], known: Any) -> Sequence[str]:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"{what} {name!r} is not one of {', '.join(known)}{hint}")
    return names
