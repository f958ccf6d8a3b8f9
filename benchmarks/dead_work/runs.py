"""Measure seconds and CPU seconds per batch of whole runs of RLinf's workers, with and without dead work.

    python -m benchmarks.dead_work.runs libero metaworld

The runs are on the CPU. Their plan, written before the first run, is in `runs.md`. Each run is a row of
`results/runs.jsonl`, and is not repeated; `--first-turn 3` makes and prints the second set of turns. LIBERO
needs RLINF_ASYNC_LIBERO_ASSETS.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.dead_work.ending import RESETS_VARIABLE, SIMULATOR_VARIABLE
from benchmarks.result_store import add_row, read_rows
from rlinf_async.lab.bench.cpu import CpuMeter
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.observe.run_dir import RunDir

REPOSITORY_ROOT = Path(__file__).parents[2]
RESULTS_FILE = Path(__file__).parent / "results" / "runs.jsonl"
RUNS_FOLDER = Path("runs")
TURN_COUNT, BATCH_COUNT = 3, 3
DEADLINE_S = 1200.0
MARK_VARIABLE = "DEAD_WORK_RUN"

OVERRIDES_BY_MODE: dict[str, tuple[str, ...]] = {
    "off": ("async.mode=off",),
    "lean": ("async.mode=lean",),
    "full, nothing left out": ("async.mode=full", "async.skip=false"),
    "full": ("async.mode=full",),
}
COMPARED_MODES = (("lean", "off"), ("full", "full, nothing left out"), ("full", "off"))

ENV_SECTIONS = ("train", "eval")
OVERRIDES_BY_SIMULATOR: dict[str, tuple[str, ...]] = {
    "libero": (
        *("-n", "libero_object_ppo_vla"),
        *("actor.model.image_size=256", "actor.model.patch_size=32", "actor.model.num_action_chunks=10"),
        *("env.train.max_episode_steps=60", "env.train.use_rel_reward=false", "env.train.total_num_envs=2"),
        *("actor.micro_batch_size=6", "actor.global_batch_size=12"),
    ),
    "metaworld": (
        *("-n", "metaworld_ppo_vla"),
        *(f"env.{part}.env_class=null" for part in ENV_SECTIONS),
        *(f"+env.{part}.task_suite_name=one" for part in ENV_SECTIONS),
        *(f"~env.{part}.processes" for part in ENV_SECTIONS),
        *(f"env.{part}.ignore_terminations=false" for part in ENV_SECTIONS),
        *("actor.model.image_size=480", "actor.model.patch_size=60", "actor.model.num_action_chunks=5"),
        *("env.train.max_episode_steps=40", "env.train.total_num_envs=4", "actor.model.state_dim=4"),
        *("actor.micro_batch_size=8", "actor.global_batch_size=32"),
    ),
}
"""Two environments of LIBERO with two cameras of 256 pixels and 6 decisions of 10 steps; four environments of
Meta-World with one camera of 480 pixels and 8 decisions of 5 steps."""


def run(simulator: str, mode: str, turn: int) -> dict[str, Any]:
    """Train `BATCH_COUNT` batches, and measure from the begin of the first reset to the end of the last step.

    Raises:
        RuntimeError: the run failed (the message has the end of its output), or left too little to measure.
    """
    name = f"{simulator}-{mode.replace(', ', '-').replace(' ', '-')}-{turn}"
    directory = RUNS_FOLDER / name
    shutil.rmtree(directory, ignore_errors=True)  # or logs of an earlier attempt would be read as well
    directory.mkdir(parents=True)
    log, resets = directory / "output.log", directory / "resets.txt"
    command = [
        *(sys.executable, "-m", "rlinf_async.cli", "train"),
        *OVERRIDES_BY_SIMULATOR[simulator],
        *(f"runner.max_epochs={BATCH_COUNT}", f"runner.logger.log_path={directory}"),
        *("runner.logger.logger_backends=[tensorboard]", f"actor.seed={turn}"),
        *OVERRIDES_BY_MODE[mode],
    ]
    path = os.pathsep.join([str(REPOSITORY_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **OWN_CLUSTER,
        "RLINF_EXT_MODULE": "benchmarks.dead_work.ending",
        SIMULATOR_VARIABLE: simulator,
        RESETS_VARIABLE: str(resets.resolve()),
        "PYTHONPATH": path,
        MARK_VARIABLE: name,
    }
    # Steps are stamped with the time of day, the samples of the meter with the monotonic clock.
    day_s = time.time() - time.monotonic()
    with CpuMeter(f"{MARK_VARIABLE}={name}") as meter:
        status = run_command(command, log, environment=environment, deadline_s=DEADLINE_S)
    if status:
        raise RuntimeError(f"{name} ended with status {status}: {tail(log, 3000)}")
    ends_s = _ends_s(directory)
    if len(ends_s) != BATCH_COUNT:
        raise RuntimeError(f"{name} has logged {len(ends_s)} of {BATCH_COUNT} steps")
    began_s = min(map(float, resets.read_text().split()))
    usage = meter.between(began_s - day_s, ends_s[-1] - day_s)
    if usage is None:
        raise RuntimeError(f"{name}: there are no samples of the CPU time around its steps")
    scalars = read_scalars(directory)
    return {
        "simulator": simulator,
        "mode": mode,
        "turn": turn,
        "seconds_a_batch": round((ends_s[-1] - began_s) / BATCH_COUNT, 2),
        "cpu_s_a_batch": round(usage.run_s / BATCH_COUNT, 2),
        "cores_of_others": round(usage.others, 2),
        "seconds": [round(later - before, 2) for before, later in pairwise([began_s, *ends_s])],
        "skipped": {
            tag.removeprefix("async/skipped/"): [round(value, 3) for value in values.values()]
            for tag, values in scalars.items()
            if tag.startswith("async/skipped/")
        },
        "episode_len": [round(value, 2) for value in scalars.get("env/episode_len", {}).values()],
    }


def _ends_s(directory: Path) -> list[float]:
    """Return the time of day at which each step was logged, in seconds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunDir(directory).tensorboard
    events = EventAccumulator(str(folder / "all" if (folder / "all").exists() else folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    tag = next(name for name in ("time/step", "async/step_seconds") if name in tags)
    return [event.wall_time for event in events.Scalars(tag)]


def table(turns: Sequence[int]) -> str:
    """Return the Markdown tables of the page `runs.md`: the values of `turns`, and median and span of the
    ratios within a turn.
    """
    found = {(row["simulator"], row["mode"], row["turn"]): row for row in read_rows(RESULTS_FILE)}
    columns = {"seconds_a_batch": 1, "cpu_s_a_batch": 1, "cores_of_others": 2}  # with digits
    lines = ["| turns | seconds a batch | CPU seconds a batch | cores of others |", "|---|---|---|---|"]
    for simulator, mode in product(OVERRIDES_BY_SIMULATOR, OVERRIDES_BY_MODE):
        own = [found[simulator, mode, turn] for turn in turns if (simulator, mode, turn) in found]
        values = [", ".join(f"{row[name]:.{digits}f}" for row in own) for name, digits in columns.items()]
        lines.append(f"| {simulator}: `{mode}` | {' | '.join(values)} |")
    lines += ["", "| ratio within a turn | seconds | CPU seconds |", "|---|---|---|"]
    for simulator, (over, under) in product(OVERRIDES_BY_SIMULATOR, COMPARED_MODES):
        cells = [
            _ratio([(simulator, over), (simulator, under)], name, found, turns)
            for name in ("seconds_a_batch", "cpu_s_a_batch")
        ]
        lines.append(f"| {simulator}: `{over}` over `{under}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(
    sides: Sequence[tuple[str, str]],
    name: str,
    found: Mapping[tuple[str, str, int], Mapping[str, Any]],
    turns: Sequence[int],
) -> str:
    """Return median and span of the ratio of two sides' values `name`, over the `turns` that both have."""
    over, under = sides
    ratios = [
        found[(*over, turn)][name] / found[(*under, turn)][name]
        for turn in turns
        if (*over, turn) in found and (*under, turn) in found
    ]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "simulators", nargs="*", metavar="SIMULATOR", help=" or ".join(OVERRIDES_BY_SIMULATOR)
    )
    parser.add_argument("--report", action="store_true", help="only print the table")
    parser.add_argument("--first-turn", type=int, default=0, help=f"the first of {TURN_COUNT} turns")
    options = parser.parse_args()
    if unknown := set(options.simulators) - OVERRIDES_BY_SIMULATOR.keys():
        parser.error(
            f"no simulator {', '.join(sorted(unknown))}; there are {', '.join(OVERRIDES_BY_SIMULATOR)}"
        )
    simulators = () if options.report else options.simulators or OVERRIDES_BY_SIMULATOR
    turns = range(options.first_turn, options.first_turn + TURN_COUNT)
    for turn, simulator, mode in product(turns, simulators, OVERRIDES_BY_MODE):
        if (simulator, mode, turn) not in {
            (row["simulator"], row["mode"], row["turn"]) for row in read_rows(RESULTS_FILE)
        }:
            add_row(RESULTS_FILE, run(simulator, mode, turn))
    print(table(turns))


if __name__ == "__main__":
    main()
