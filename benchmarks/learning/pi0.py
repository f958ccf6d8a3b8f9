"""RLinf's pi0 class at tiny sizes by PPO, in RLinf's synchronous loop and in `full`: success over seconds.

`python -m benchmarks.learning.pi0` makes the missing runs, by turns on one machine, and writes the page;
`--report` only writes the page. Runs are those of `make demo-vla` (config `metaworld_ppo_pi0`, 60 batches of
64 episodes), where openpi is installed.

The plan, written before the first run of a seed below. The settings of the config were chosen with seed 0.

* Pairs: one for each seed, `off` (RLinf's own workers and runner) and `full`, which take turns at being
  first. A pair counts if both runs end, and is shown whatever it shows.
* Speed: seconds of training until four batches in a row have a mean success of at least 80 %. Tested: the
  mean of `log(full / off)` over pairs is below 0, one-sided, Student's t. A pair in which a run never gets
  there does not count for this, and is named.
* Learning: the area under the success curve above its first batch, over batches. Tested: equivalence within
  5 % of what `off` learned, two one-sided tests; and shown: the same against the curve of `off` moved by a
  batch, which is what a lag of one costs at least.
* With fewer than five pairs nothing is claimed, and the numbers are shown.

Added when two pairs had been read, before any run of it: RLinf's own asynchronous PPO on the same config,
seeds 10 to 14, once the pairs are there; its curve is read as `peers` reads it, and seconds to 80 % count
fresh batches. Tested: the mean of `log(full / async-ppo)` over these seeds is below 0, one-sided; the two
claims of speed are corrected by Holm. Of its learning nothing is tested, as it trains on a batch twice
where no newer one has come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.learning import cells, tables
from benchmarks.learning.campaign import by_seed, origin
from benchmarks.learning.on_ray import RUNS_FOLDER, train
from benchmarks.learning.peers import ASYNC_PPO_PROGRAM, PeerCurve, read_async_ppo
from benchmarks.learning.statistics import holm, learned, moved, tost_paired
from rlinf_async.lab.bench.sides import ASYNC_PPO
from rlinf_async.lab.sweep.steps import read_scalars

CONFIG_NAME = "metaworld_ppo_pi0"
ROWS_FILE = cells.RESULTS_FOLDER / "pi0.jsonl"
PLANNED_SEEDS = range(10, 20)
SIDE_BY_MODE = {"off": "synchronous", "full": "asynchronous"}
"""The compared modes, with their names in `plots`."""
PEER_MODE = "async-ppo"
PEER_SEEDS = PLANNED_SEEDS[:5]
PEER_UPDATES = 100
SUCCESS_LEVEL = 0.8
EQUIVALENCE_MARGIN = 0.05
FEWEST_PAIRS = 5

Curve = dict[str, Any]
"""`success`, and `seconds` since training began, after every batch; for `PEER_MODE` also `fresh` flags."""


@dataclass(frozen=True)
class Run:
    """One run."""

    seed: int
    mode: str


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order; the modes of a pair take turns at being first."""
    for seed in seeds:
        yield from (Run(seed, mode) for mode in (SIDE_BY_MODE if seed % 2 else reversed(SIDE_BY_MODE)))
    yield from (Run(seed, PEER_MODE) for seed in PEER_SEEDS if seed in seeds)


def trained(run: Run) -> dict[str, Any]:
    """Train one run, and return its row.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    directory = (RUNS_FOLDER / f"pi0-{run.mode}-seed{run.seed}").absolute()
    own = [f"actor.seed={run.seed}", f"runner.logger.log_path={directory}"]
    if run.mode == PEER_MODE:
        updates = f"runner.max_epochs={PEER_UPDATES}"
        train(directory, [CONFIG_NAME, *own, *ASYNC_PPO, updates], program=ASYNC_PPO_PROGRAM)
        return {**vars(run), **vars(read_async_ppo(read_scalars(directory)))}
    train(directory, ["-n", CONFIG_NAME, f"async.mode={run.mode}", *own])
    return {**vars(run), **read_curve(directory)}


def read_curve(directory: Path) -> dict[str, Any]:
    """Return success, seconds since training began, and mean staleness, from the logs of a run."""
    scalars = {tag: list(values.values()) for tag, values in read_scalars(directory).items()}
    seconds = accumulate(scalars.get("time/step") or scalars["async/step_seconds"])
    return {
        "success": [round(value, 4) for value in scalars["env/success_once"]],
        "seconds": [round(value, 2) for value in seconds],
        "staleness": round(float(np.mean(scalars.get("async/staleness/mean", [0.0]))), 3),
    }


def pairs(rows: Mapping[Run, Curve]) -> dict[int, Mapping[str, Curve]]:
    """Return the curves of the seeds with both modes, by seed and mode."""
    curves: dict[int, dict[str, Curve]] = {}
    for run in sorted(rows, key=lambda run: run.seed):
        curves.setdefault(run.seed, {})[run.mode] = rows[run]
    return {seed: by_mode for seed, by_mode in curves.items() if by_mode.keys() >= SIDE_BY_MODE.keys()}


def seconds_to_level(curve: Curve) -> float | None:
    return as_peer_curve(curve).seconds_to(SUCCESS_LEVEL)


def as_peer_curve(curve: Curve) -> PeerCurve:
    """Return the curve with the type of `peers`."""
    return PeerCurve(
        success=curve["success"],
        seconds=curve["seconds"],
        fresh=[bool(fresh) for fresh in curve.get("fresh", [True] * len(curve["success"]))],
    )


def report(rows: Mapping[Run, Curve]) -> str:
    """Return the page with its Markdown table and the results of the tests."""
    found = pairs(rows)
    head = [
        "seed",
        *(f"{mode}: seconds to {SUCCESS_LEVEL:.0%}" for mode in (*SIDE_BY_MODE, PEER_MODE)),
        *(f"{mode}: {what}" for what in ("seconds in all", "last ten") for mode in SIDE_BY_MODE),
    ]
    lines = [
        [
            str(seed),
            *(tables.number(seconds_to_level(both[mode]), 0) for mode in SIDE_BY_MODE),
            tables.number(seconds_to_level(both[PEER_MODE]), 0) if PEER_MODE in both else "",
            *(tables.number(both[mode]["seconds"][-1], 0) for mode in SIDE_BY_MODE),
            *(tables.percent(float(np.mean(both[mode]["success"][-10:]))) for mode in SIDE_BY_MODE),
        ]
        for seed, both in found.items()
    ]
    return "\n".join(
        [
            "# RLinf's pi0 class at tiny sizes, by PPO, in RLinf's loop and in `full`\n",
            f"{origin(ROWS_FILE)}, written before the first run.\n",
            tables.markdown(head, lines),
            *claims(found),
        ]
    )


def claims(found: Mapping[int, Mapping[str, Curve]]) -> list[str]:
    """Return the results of the plan's tests in words; none with fewer than two pairs."""
    if len(found) < 2:
        return []
    pairs_there = f"{len(found)} of {len(PLANNED_SEEDS)} pairs"
    few = f"{pairs_there}, with fewer than {FEWEST_PAIRS} of which nothing is claimed.\n"
    return [*([few] if len(found) < FEWEST_PAIRS else []), *speeds(found), learning(found)]


def speeds(found: Mapping[int, Mapping[str, Curve]]) -> list[str]:
    """Test the seconds to the success level against RLinf's loop, and against its asynchronous PPO."""
    ratios = {
        other: {
            seed: math.log(full / before)
            for seed, curves in found.items()
            if other in curves
            and (before := seconds_to_level(curves[other]))
            and (full := seconds_to_level(curves["full"]))
        }
        for other in ("off", PEER_MODE)
    }
    ratios = {other: logs for other, logs in ratios.items() if len(logs) > 1}
    p_values = [
        stats.ttest_1samp(list(logs.values()), 0, alternative="less").pvalue for logs in ratios.values()
    ]
    lines = []
    for (other, logs), p, kept in zip(ratios.items(), p_values, holm(p_values), strict=True):
        never = [str(seed) for seed, curves in found.items() if other in curves and seed not in logs]
        test = tost_paired([0.0] * len(logs), list(logs.values()), math.inf)
        low, middle, high = np.exp(np.array([test.ci_low, test.difference, test.ci_high], float))
        lines.append(
            f"**Speed.** Seconds to {SUCCESS_LEVEL:.0%}, `full` over `{other}`: {middle:.2f}, geometric mean "
            f"of {len(logs)}, with a 90 % interval of {low:.2f} to {high:.2f}; p = {p:.4f} of the test "
            f"that it is below 1, which Holm {'keeps' if kept else 'does not keep'}"
            + (f"; seeds without both: {', '.join(never)}" if never else "")
            + ".\n"
        )
    return lines


def learning(found: Mapping[int, Mapping[str, Curve]]) -> str:
    """Test the learning of `full`, as a share of the learning of `off`."""
    curves, others = ([both[mode]["success"] for both in found.values()] for mode in SIDE_BY_MODE)
    off, later, full = learned(curves, [moved(curve, 1) for curve in curves], others)
    total, beyond = (tost_paired(before, full, EQUIVALENCE_MARGIN) for before in (off, later))
    verdict = "the same" if total.equivalent else "not shown to be the same"
    return (
        f"**Learning.** `full` minus `off`, as a share of what `off` learned: {tables.share(total)}, "
        f"{verdict} within {EQUIVALENCE_MARGIN:.0%}; minus `off` a batch later: {tables.share(beyond)}.\n"
    )


def draw(found: Mapping[int, Mapping[str, Curve]]) -> None:
    """Write pi0.png, and pi0-dark.png."""
    from benchmarks.learning import plots  # which draws all experiments

    sides = {**SIDE_BY_MODE, PEER_MODE: PEER_MODE}
    curves = {
        side: {seed: as_peer_curve(curves[mode]) for seed, curves in found.items() if mode in curves}
        for mode, side in sides.items()
    }
    curves = {side: of_side for side, of_side in curves.items() if of_side}
    longest = max((both["off"]["seconds"][-1] for both in found.values()), default=1.0)
    panel = plots.Reached(curves=curves, label=plots.SECONDS_LABEL, most=longest)
    plots.success_over([panel], SUCCESS_LEVEL, name="pi0.png")


if __name__ == "__main__":
    draw(pairs(by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report)))
