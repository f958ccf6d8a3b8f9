"""Kill simulators of a run, and test that it learns as well as the same run left alone.

    python -m benchmarks.chaos.learning

The runs have the demo's task and policy on the local host with all levels on. Each of five seeds has two
runs: one left alone, and one that loses one of its two simulators after every fifth of its 30 steps. On an
otherwise idle machine a run takes about 40 s, so that there is a kill every 7 s. A run that is in
`learning.json` is not repeated.

To pass, the two runs of the seeds are equivalent within 5 % of the mean of the runs left alone, both in the
area under the success curve and in the success of the last quarter of the batches (two one-sided paired
t-tests at 5 % each), no trajectory is unaccounted for, and none is staler than the bound.

This was stated before the first run, for a kill every 20 s and a third side with a kill every 5 s. On a
shared machine, runs took from half a minute to more than ten; longer runs had more kills, and longer waits
before restarts, which double within a window. One run with a kill every 20 s ended, and is not used; one of
each side was stopped after ten minutes. Since then kills are counted in steps, and the window is short.
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
from benchmarks.learning import tables
from benchmarks.learning.cells import ACTION_REPEAT, HORIZON_DECISIONS, Cell
from benchmarks.learning.data import PRESS_TASK
from benchmarks.learning.local_cell import WARM_STARTS, settings_of
from benchmarks.learning.statistics import MEASURE_NAMES, Tost, area, compared, final
from benchmarks.result_store import ResultStore
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.local_metaworld import metaworld
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings
from rlinf_async.lab.demo.warm_start import warm_start
from rlinf_async.lab.demo.warm_start_settings import WarmStart
from rlinf_async.lab.table import markdown
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.reading.faults import count_faults

RESULTS_FILE = Path(__file__).with_name("learning.json")
BATCH_COUNT, SEED_COUNT = 30, 5
EQUIVALENCE_MARGIN, FINAL_SHARE = 0.05, 0.25
UNDISTURBED_SIDE = "left alone"
KILL_INTERVAL_BY_SIDE: dict[str, int | None] = {UNDISTURBED_SIDE: None, "killed every 5 steps": 5}
SURVIVE_SETTINGS = {"survive": {"env_restarts": 1000}, "advanced": {"window_s": 20}}
"""Enough restarts that no run gives up: this experiment compares learning."""


def settings(seed: int) -> LocalSettings:
    """Return the demo's settings, as `benchmarks.learning` uses them."""
    block = {"mode": "full", **SURVIVE_SETTINGS}
    cell = Cell(
        host="local",
        task=PRESS_TASK,
        algorithm="ppo",
        label="full",
        asynchrony=block,
        batches=BATCH_COUNT,
        seed=seed,
    )
    return settings_of(cell)


def run(seed: int, every: int | None) -> dict[str, Any]:
    """Train; unless `every` is None, kill a simulator after every `every` steps."""
    torch.set_num_threads(1)
    ours = settings(seed)
    start = warm_start(WarmStart(task_name=PRESS_TASK, seed=seed), WARM_STARTS)
    task = TaskSettings(PRESS_TASK, max_episode_steps=HORIZON_DECISIONS, action_repeat=ACTION_REPEAT)
    environments = metaworld(task, obs_stats=start.obs_stats_path, seed=seed, processes=1)
    draw, killed = random.Random(seed), []

    def kill(report: StepReport, _: object) -> None:
        if every is None or report.step % every or report.step == BATCH_COUNT:
            return
        found = simulators_of(os.getpid())
        if found:  # else all simulators are being restarted
            killed.append(draw.choice(found))
            os.kill(killed[-1], signal.SIGKILL)

    with TemporaryDirectory() as run_dir:
        weights = torch.load(start.policy_path)
        options: Any = {"weights": weights, "on_step": kill, "run_dir": Path(run_dir)}
        trainer = LocalTrainer(ours, environments, GaussianPolicy, **options)
        result = trainer.run()
        outlived = count_faults(Path(run_dir)).restarts
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
    """Compare `side` with the runs left alone, over the seeds that both have.

    Differences are shares of the mean of the runs left alone.
    """
    pairs = [
        (results[name_of(UNDISTURBED_SIDE, seed)], results[name_of(side, seed)])
        for seed in range(SEED_COUNT)
        if name_of(UNDISTURBED_SIDE, seed) in results and name_of(side, seed) in results
    ]
    alone, killed = ([pair[place]["success"] for pair in pairs] for place in (0, 1))
    return compared(alone, killed, margin=EQUIVALENCE_MARGIN, final_share=FINAL_SHARE)


def passed(results: Mapping[str, Any], side: str) -> bool:
    """Return True if all runs of `side` are there, have learned the same, and have a ledger that balances."""
    runs = [results.get(name_of(one, seed)) for one in (UNDISTURBED_SIDE, side) for seed in range(SEED_COUNT)]
    kept = all(one and one["unaccounted"] == 0 and one["staleness"] <= one["bound"] for one in runs)
    return kept and all(test.equivalent for test in tests(results, side).values())


def name_of(side: str, seed: int) -> str:
    return f"{side}, seed {seed}"


def table(results: Mapping[str, Any]) -> str:
    """Return a Markdown table with a line per side."""
    rows = []
    for side in KILL_INTERVAL_BY_SIDE:
        runs = [results[name_of(side, seed)] for seed in range(SEED_COUNT) if name_of(side, seed) in results]
        against = tests(results, side) if side != UNDISTURBED_SIDE else {}
        rows.append(
            [
                side,
                str(len(runs)),
                *(_sum(runs, name) for name in ("killed", "restarts", "unaccounted")),
                _mean([area(one["success"]) for one in runs]),
                _mean([final(one["success"], FINAL_SHARE) for one in runs]),
                *(tables.share(against.get(name)) for name in MEASURE_NAMES),
                "–" if side == UNDISTURBED_SIDE else "yes" if passed(results, side) else "no",
            ]
        )
    heads = ["side", "runs", "kills", "restarts", "unaccounted", "area", "final"]
    return markdown([*heads, "difference of area", "of final", "passed"], rows)


def _sum(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    return str(sum(one[name] for one in runs))


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}" if values else "–"


def main(
    report: Annotated[bool, typer.Option("--report", help="Only print the table.")] = False,
) -> None:
    """Run the missing runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for seed, (side, every) in product(range(SEED_COUNT), KILL_INTERVAL_BY_SIDE.items()):
        if not report and name_of(side, seed) not in store.results:
            store.add(name_of(side, seed), run(seed, every))
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
