"""Does a run whose simulators are killed learn what it learns when it is left alone?

    python -m benchmarks.chaos.learning

The demo's task and policy on the local host with all levels on. Five seeds, each left alone, and with one of
its two simulators killed after every fifth of its 30 steps. On a machine that does nothing else these take
about 40 s, which makes a kill every 7 s. A run that is in `learning.json` is not repeated.

To pass: the two runs of each seed are equivalent within 5 % of what those left alone reach, both in the area
under the success curve and in the success of the last quarter of the batches (two one-sided paired t-tests
at 5 % each), no trajectory is unaccounted for and none is staler than the bound.

This was stated before the first run, for a kill every 20 s and another side with one every 5 s. On a machine
that is shared with others runs took from half a minute to more than ten, and with them grew the number of
kills, and the wait before a restart, which doubles within a window. One run with a kill every 20 s ended, and
is not used; one of each side was stopped after ten minutes. Since then kills are counted in steps, and the
window is short.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.chaos.victims import simulators_of
from benchmarks.kept import Kept
from benchmarks.learning import tables
from benchmarks.learning.cells import ACTION_REPEAT, HORIZON, Cell
from benchmarks.learning.data import PRESS
from benchmarks.learning.local_cell import WARM_STARTS, settings_of
from benchmarks.learning.statistics import MEASURES, Tost, area, compared, final
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.local_metaworld import metaworld
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings
from rlinf_async.lab.demo.warm_start import WarmStart, warm_start
from rlinf_async.lab.table import markdown
from rlinf_async.observe.failures import count_failures
from rlinf_async.observe.meters import StepReport

RESULTS = Path(__file__).with_name("learning.json")
BATCHES, SEEDS = 30, 5
MARGIN, FINAL_SHARE = 0.05, 0.25
ALONE = "left alone"
SIDES: dict[str, int | None] = {ALONE: None, "killed every 5 steps": 5}
SURVIVE = {"survive": {"env_restarts": 1000}, "advanced": {"window_s": 20}}
"""So many restarts that none ends a run: what is learned is asked here, and not when a run gives up."""


def settings(seed: int) -> LocalSettings:
    """Those of the demo, as the other experiments on learning have them."""
    block = {"mode": "full", **SURVIVE}
    cell = Cell(
        host="local",
        task=PRESS,
        algorithm="ppo",
        label="full",
        asynchrony=block,
        batches=BATCHES,
        seed=seed,
    )
    return settings_of(cell)


def run(seed: int, every: int | None) -> dict[str, Any]:
    """Train, and kill a simulator after every so many steps, if that is given."""
    torch.set_num_threads(1)
    ours = settings(seed)
    start = warm_start(WarmStart(task_name=PRESS, seed=seed), WARM_STARTS)
    task = TaskSettings(PRESS, max_episode_steps=HORIZON, action_repeat=ACTION_REPEAT)
    environments = metaworld(task, obs_stats=start.obs_stats_path, seed=seed, processes=1)
    draw, killed = random.Random(seed), []

    def kill(report: StepReport, _: object) -> None:
        if every is None or report.step % every or report.step == BATCHES:
            return
        found = simulators_of(os.getpid())
        if found:  # else all of them are away, being started again
            killed.append(draw.choice(found))
            os.kill(killed[-1], signal.SIGKILL)

    with TemporaryDirectory() as run_dir:
        weights = torch.load(start.policy_path)
        trainer = LocalTrainer(ours, environments, weights=weights, on_step=kill, run_dir=Path(run_dir))
        result = trainer.run()
        outlived = count_failures(Path(run_dir)).restarts
    return {
        "success": [round(one["env/success_once"], 4) for one in result.metrics],
        "seconds": round(sum(report.seconds for report in result.reports), 1),
        "killed": len(killed),
        "restarts": outlived.get("env", 0),
        "staleness": max(report.staleness.high for report in result.reports),
        "bound": ours.asynchrony.max_staleness,
        "books": str(result.ledger),
        "unaccounted": result.ledger.in_flight,
    }


def tests(results: Mapping[str, Any], side: str) -> dict[str, Tost]:
    """`side` against the runs left alone, of the seeds that both have, as shares of what those reach."""
    pairs = [
        (results[name_of(ALONE, seed)], results[name_of(side, seed)])
        for seed in range(SEEDS)
        if name_of(ALONE, seed) in results and name_of(side, seed) in results
    ]
    alone, killed = ([pair[place]["success"] for pair in pairs] for place in (0, 1))
    return compared(alone, killed, margin=MARGIN, final_share=FINAL_SHARE)


def passed(results: Mapping[str, Any], side: str) -> bool:
    """Whether the runs of `side` have learned the same and kept their books; False while some are missing."""
    runs = [results.get(name_of(one, seed)) for one in (ALONE, side) for seed in range(SEEDS)]
    kept = all(one and one["unaccounted"] == 0 and one["staleness"] <= one["bound"] for one in runs)
    return kept and all(test.equivalent for test in tests(results, side).values())


def name_of(side: str, seed: int) -> str:
    return f"{side}, seed {seed}"


def table(results: Mapping[str, Any]) -> str:
    """A line per side."""
    rows = []
    for side in SIDES:
        runs = [results[name_of(side, seed)] for seed in range(SEEDS) if name_of(side, seed) in results]
        against = tests(results, side) if side != ALONE else {}
        rows.append(
            [
                side,
                str(len(runs)),
                *(_sum(runs, name) for name in ("killed", "restarts", "unaccounted")),
                _mean([area(one["success"]) for one in runs]),
                _mean([final(one["success"], FINAL_SHARE) for one in runs]),
                *(tables.share(against.get(name)) for name in MEASURES),
                "–" if side == ALONE else "yes" if passed(results, side) else "no",
            ]
        )
    heads = ["side", "runs", "kills", "restarts", "unaccounted", "area", "final"]
    return markdown([*heads, "difference of area", "of final", "passed"], rows)


def _sum(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    return str(sum(one[name] for one in runs))


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}" if values else "–"


def main(
    report: Annotated[bool, typer.Option("--report", help="Run nothing.")] = False,
) -> None:
    """Run what is missing, and print the table."""
    kept = Kept(RESULTS)
    for seed, (side, every) in product(range(SEEDS), SIDES.items()):
        if not report and name_of(side, seed) not in kept.results:
            kept.add(name_of(side, seed), run(seed, every))
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
