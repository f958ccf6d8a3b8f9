"""RLinf's asynchronous SAC beside the prototype, by turns: transitions and updates a second.

    python -m benchmarks.off_policy emulated
    python -m benchmarks.off_policy --report

The plan, written before the first run, is in `plan.md`. Each turn is a row of
`results/WORKLOAD.jsonl`; a workload that has rows is not run again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.off_policy.events import Event, counted, read_events, windows
from benchmarks.off_policy.size import code_lines
from benchmarks.result_store import add_row, read_rows
from rlinf_async.lab.bench.cpu import CpuMeter
from rlinf_async.lab.process import run_command, tail

FOLDER = Path(__file__).parent
REPOSITORY_ROOT = Path(__file__).parents[2]
RUNS_FOLDER = Path("runs") / "off_policy"
MARK_VARIABLE = "OFF_POLICY_RUN"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TURN_COUNT = 3
START_S, END_S = 600.0, 120.0
"""Seconds that starting a run, and beginning and ending one of its turns, may take on a busy machine."""
MAX_PROTOTYPE_LINES = 300
Mode = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload: its `modes` are pairs of a loop and the frames that are drawn."""

    modes: tuple[Mode, ...]
    turn_s: float
    environments: int

    def command(self, folder: Path) -> list[str]:
        turns = [list(mode) for _ in range(TURN_COUNT) for mode in self.modes]
        return [
            *(sys.executable, "-m", "benchmarks.off_policy.run", str(folder / "log")),
            f"turns={str(turns).replace(chr(39), '')}",
            f"turn_s={self.turn_s}",
            f"env.train.total_num_envs={self.environments}",
        ]

    @property
    def deadline_s(self) -> float:
        return START_S + TURN_COUNT * len(self.modes) * (self.turn_s + END_S)


WORKLOADS = {
    "emulated": Workload(
        modes=(
            ("stock", "all"),
            ("stock", "last"),
            ("sharded", "all"),
            ("sharded", "last"),
        ),
        turn_s=20.0,
        environments=4,
    ),
}


def run(name: str) -> list[dict[str, Any]]:
    """Run all turns of a workload; return a row for each.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    workload, folder = WORKLOADS[name], (RUNS_FOLDER / name).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    events_folder = folder / "events"
    events_folder.mkdir(parents=True)
    environment = {
        **ONE_THREAD,
        "OFF_POLICY_EVENTS": str(events_folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY_ROOT), os.environ.get("PYTHONPATH")])),
        MARK_VARIABLE: name,
    }
    day_s, log = time.time() - time.monotonic(), folder / "output.log"
    with CpuMeter(f"{MARK_VARIABLE}={name}") as meter:
        status = run_command(
            workload.command(folder), log, environment=environment, deadline_s=workload.deadline_s
        )
    found = read_events(events_folder)
    spans = windows(found)
    if status or len(spans) != TURN_COUNT * len(workload.modes):
        raise RuntimeError(f"{name}: status {status}, {len(spans)} turns: {tail(log, 3000)}")
    rows = []
    for number, span in enumerate(spans):
        usage = meter.between(span[0] - day_s, span[1] - day_s)
        loop, frames = workload.modes[number % len(workload.modes)]
        rows.append(
            {
                "workload": name,
                "loop": loop,
                "frames": frames,
                "turn": number // len(workload.modes),
                **row(found, span),
                "cpu_s": usage and round(usage.run_s, 1),
                "cores_of_others": usage and round(usage.others, 2),
            }
        )
    return rows


def row(events: Iterable[Event], span: tuple[float, float]) -> dict[str, Any]:
    """Return the results of `span`: transitions of the environments, and updates of the learner."""
    seconds = span[1] - span[0]
    counts, times = counted(events, span)
    return {
        "seconds": round(seconds, 2),
        "transitions": counts["decisions"],
        "in_replay": counts["in replay"],
        "updates": counts["updates"],
        "transitions_a_second": round(counts["decisions"] / seconds, 3),
        "updates_a_second": round(counts["updates"] / seconds, 3),
        "updates_a_transition": round(counts["updates"] / max(counts["decisions"], 1), 3),
        "decision_s": times.get("decisions"),
        "resets": counts["resets"],
        "reset_s": times.get("resets"),
    }


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the values of each turn, and each mode's ratios over RLinf's own loop within a turn."""
    found = {((one["loop"], one["frames"]), one["turn"]): one for one in rows}
    columns = {
        "transitions a second": lambda one: one["transitions_a_second"],
        "updates a second": lambda one: one["updates_a_second"],
        "updates a transition": lambda one: one["updates_a_transition"],
        "CPU s a transition": lambda one: one["cpu_s"] and one["cpu_s"] / max(one["transitions"], 1),
    }
    lines = [f"| {name} | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for mode in WORKLOADS[name].modes:
        own = [found[mode, turn] for turn in range(TURN_COUNT) if (mode, turn) in found]
        cells = [_values(map(value, own)) for value in columns.values()]
        lines.append(f"| `{mode[0]}`, {mode[1]} frames | {' | '.join(cells)} |")
    lines += ["", f"| {name}, ratio within a turn | " + " | ".join(columns) + " |", lines[1]]
    for over, under in compared(WORKLOADS[name].modes):
        pairs = [
            (found[over, turn], found[under, turn])
            for turn in range(TURN_COUNT)
            if (over, turn) in found and (under, turn) in found
        ]
        cells = [_ratios(((value(a), value(b)) for a, b in pairs)) for value in columns.values()]
        names = " over ".join(f"`{mode[0]}`, {mode[1]}" for mode in (over, under))
        lines.append(f"| {names} | {' | '.join(cells)} |")
    return "\n".join(lines)


def compared(modes: Sequence[Mode]) -> list[tuple[Mode, Mode]]:
    """Return each mode with the first one, and with the one that differs in the loop alone."""
    first, *others = modes
    pairs = [(mode, first) for mode in others]
    pairs += [(mode, ("stock", mode[1])) for mode in others if mode[0] != "stock" and mode[1] != first[1]]
    return pairs


def _values(values: Iterable[float | None]) -> str:
    return ", ".join("" if value is None else f"{value:.2f}" for value in values)


def _ratios(pairs: Iterable[tuple[float | None, float | None]]) -> str:
    ratios = [over / under for over, under in pairs if over is not None and under]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=" or ".join(WORKLOADS))
    parser.add_argument("--report", action="store_true", help="only print the tables")
    options = parser.parse_args()
    if unknown := set(options.workloads) - WORKLOADS.keys():
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    lines = code_lines(FOLDER / "prototype.py")
    print(f"prototype.py has {lines} lines of code, of {MAX_PROTOTYPE_LINES} at most\n")
    for name in options.workloads or WORKLOADS:
        file = FOLDER / "results" / f"{name}.jsonl"
        if not options.report and not file.exists():
            for one in run(name):
                add_row(file, one)
        if file.exists():
            print(table(name, read_rows(file)), end="\n\n")


if __name__ == "__main__":
    main()
