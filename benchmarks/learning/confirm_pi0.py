"""Does `full` as it ships learn what RLinf's loop learns with RLinf's pi0 class, on fresh seeds and fresh
starts, and in how many seconds: `nice python -m benchmarks.learning.confirm_pi0`.

What follows was written down, and committed, before any run.

Questions. Is the learning of `full` not below -5 % of that of the synchronous loop, against the synchronous
curve itself? Which of lag, order of samples, dead work and machinery costs or gives what, in learning and in
seconds?

Runs. RLinf's pi0 class at tiny sizes on RLinf's workers (config `metaworld_ppo_pi0`), 40 batches of 64
episodes; other work on the machine runs in Linux's idle class alone, which gets only the time that a run
leaves over. Arms: `off`; `lean`; `lag0`, which is `full` with `max_staleness: 0`, so that shards and the
denoise index of a pass are those of `full` and no sample is old; `full`. Each seed clones a start of its own,
which its arms share. The arms of a seed begin with another one at each seed.

Measure. Area of success above the start, as a share of the mean that the runs of `off` learned, paired by
seed. Beside it, and without a verdict: the same against the curve of `off` moved by a batch.

Primary test. `full` minus `off` is above -5 %: a one-sided paired t-test at 2.5 %. An interval of 95 % that
lies below 0 is told as a loss beside it, one that lies below -5 % as a loss of more than 5 %.

Secondary, intervals of 95 % and no verdict: `lean` minus `off`; `lag0` minus `off`; `full` minus `lag0`; and
the seconds to 80 % success, and those of a batch, `full` over `off`, `lean` over `off`, `lag0` over `off`, as
geometric means with intervals. A seed in which one of the two does not get to 80 % is named and left out of
the former.

Stopping rule. Eight seeds, 120 to 127, none of which was used before. Nobody looks before the last: until
every planned run has a row the report says how many there are, and computes nothing. If the experiment ends
earlier for good, it has no result, and its rows are shown as such. Runs that fail are made again. No
default is changed while it runs.

Power. Paired differences had a deviation of 15.5 % (ten seeds of one start): eight seeds exclude a loss of
5 % with a probability of 0.12 if nothing is lost, with 0.65 if 10 % is gained, so that most likely the
interval will be all that can be told. Forty seeds would want eight hours.

Time, estimated: two cores and nothing else on the machine, 12 minutes a seed.

Departures, written after the runs. Other work did not stay in the idle class: for the first twenty minutes it
had a low weight instead, and twice a normal one for 90 seconds. In seed 124 other work used up the machine's
memory, and the run of `full` was made again.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import cells, pi0, tables
from benchmarks.learning.campaign import by_seed, origin
from benchmarks.learning.comparison import MARGIN, TAIL, Curves, Finding, finding
from benchmarks.learning.confirm import claim
from benchmarks.learning.on_ray import RUNS_FOLDER, train
from benchmarks.learning.statistics import learned, tost_paired

ROWS_FILE = cells.RESULTS_FOLDER / "confirm_pi0.jsonl"
PLANNED_SEEDS = range(120, 128)
BATCH_COUNT = 40
ENV_STEPS_PER_BATCH = 64 * 20
"""Of the config: its environments, and the steps of an episode."""
REFERENCE_ARM = "off"
OVERRIDES_BY_ARM: dict[str, tuple[str, ...]] = {
    REFERENCE_ARM: ("async.mode=off",),
    "lean": ("async.mode=lean",),
    "lag0": ("async.mode=full", "async.train.max_staleness=0"),
    "full": ("async.mode=full",),
}
SECONDARY_PAIRS = (("lean", REFERENCE_ARM), ("lag0", REFERENCE_ARM), ("full", "lag0"))


@dataclass(frozen=True)
class Run:
    """One run."""

    arm: str
    seed: int

    @property
    def directory(self) -> Path:
        """The run directory."""
        return (RUNS_FOLDER / f"confirm-{self.arm}-seed{self.seed}").absolute()


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order; the arms of a seed begin with another one at each seed."""
    arms = tuple(OVERRIDES_BY_ARM)
    for seed in seeds:
        first = seed % len(arms)
        yield from (Run(arm, seed) for arm in (*arms[first:], *arms[:first]))


def overrides_of(run: Run) -> list[str]:
    """Return the overrides of a run; its start is drawn from its seed."""
    return [
        *OVERRIDES_BY_ARM[run.arm],
        f"runner.max_epochs={BATCH_COUNT}",
        f"actor.seed={run.seed}",
        f"warm_start.seed={run.seed}",
        f"runner.logger.log_path={run.directory}",
    ]


def trained(run: Run) -> dict[str, Any]:
    """Train one run, and return its row.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    train(run.directory, ["-n", pi0.CONFIG_NAME, *overrides_of(run)])
    return {**vars(run), **pi0.read_curve(run.directory)}


def report(rows: Mapping[Run, Any]) -> str:
    """Return the page; before the last planned run it only counts the runs."""
    said = f"# Does RLinf's pi0 class learn the same with `full`, and how fast\n\n{origin(ROWS_FILE)}.\n"
    if not is_complete(rows):
        planned = list(runs())
        there = sum(run in rows for run in planned)
        return f"{said}\n{there} of {len(planned)} runs are there: nothing is computed before the last.\n"
    full = primary_finding(rows)
    primary = tables.markdown(
        ["", "difference, 95 %", "p of not below -5 %", "claim", "against the moved curve"],
        [
            [
                full.name,
                tables.share(full.itself),
                f"{full.p_not_worse:.4f}",
                claim(full.itself, full.p_not_worse < TAIL),
                tables.share(full.moved),
            ]
        ],
    )
    others = tables.markdown(["", "difference, 95 %"], secondary(rows))
    seconds = tables.markdown(["", "seconds a batch, 95 %", "to 80 %, 95 %", "never"], seconds_of_arms(rows))
    return "\n".join([said, primary, others, seconds])


def is_complete(rows: Container[Run]) -> bool:
    """Return True if every planned run has a row."""
    return all(run in rows for run in runs())


def primary_finding(rows: Mapping[Run, Any]) -> Finding:
    """Return the comparison of the primary test."""
    return finding(
        "",
        "`full` minus `off`",
        *(_success(rows, arm) for arm in (REFERENCE_ARM, "full")),
        lag=float(np.mean([rows[Run("full", seed)]["staleness"] for seed in PLANNED_SEEDS])),
    )


def _success(rows: Mapping[Run, Any], arm: str) -> Curves:
    return [rows[Run(arm, seed)]["success"] for seed in PLANNED_SEEDS]


def secondary(rows: Mapping[Run, Any]) -> Iterator[list[str]]:
    """Yield the name and the difference of each secondary comparison of learning."""
    for arm, other in SECONDARY_PAIRS:
        _, before, after = learned(*(_success(rows, one) for one in (REFERENCE_ARM, other, arm)))
        yield [f"`{arm}` minus `{other}`", tables.share(tost_paired(before, after, MARGIN, TAIL))]


def seconds_of_arms(rows: Mapping[Run, Any]) -> Iterator[list[str]]:
    """Yield for each arm its name, the ratios of the seconds of a batch and to the level of success, and the
    seeds without the latter.
    """
    for arm in ("full", "lean", "lag0"):
        a_batch, to_level, never = [], [], []
        for seed in PLANNED_SEEDS:
            before, after = (rows[Run(one, seed)] for one in (REFERENCE_ARM, arm))
            a_batch.append(after["seconds"][-1] / before["seconds"][-1])
            reached = pi0.seconds_to_level(before), pi0.seconds_to_level(after)
            if reached[0] and reached[1]:
                to_level.append(reached[1] / reached[0])
            else:
                never.append(str(seed))
        yield [
            f"`{arm}` over `{REFERENCE_ARM}`",
            _mean_ratio(a_batch),
            _mean_ratio(to_level),
            ", ".join(never),
        ]


def _mean_ratio(ratios: Sequence[float]) -> str:
    """Return the geometric mean of ratios with an interval of 95 %, by Student's t of the logarithms."""
    test = tost_paired([0.0] * len(ratios), [math.log(ratio) for ratio in ratios], 1.0, TAIL)
    if test.ci_low is None or test.ci_high is None:
        return tables.NO_VALUE
    middle, low, high = (math.exp(value) for value in (test.difference, test.ci_low, test.ci_high))
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def draw(rows: Mapping[Run, Any]) -> None:
    """Write confirm_pi0.png, and confirm_pi0-dark.png, if all runs are there."""
    from benchmarks.learning import plots  # which draws all experiments

    if not is_complete(rows):
        return
    loops = {REFERENCE_ARM: "synchronous", "full": "asynchronous"}
    curves = {
        loops.get(arm, arm): {seed: pi0.as_peer_curve(rows[Run(arm, seed)]) for seed in PLANNED_SEEDS}
        for arm in OVERRIDES_BY_ARM
    }
    env_steps = [float(ENV_STEPS_PER_BATCH * (batch + 1)) for batch in range(BATCH_COUNT)]
    by_steps = {
        loop: {seed: replace(curve, seconds=env_steps) for seed, curve in of_loop.items()}
        for loop, of_loop in curves.items()
    }
    longest = max(curve.seconds[-1] for curve in curves["synchronous"].values())
    panels = [
        plots.Reached(curves=curves, label=plots.SECONDS_LABEL, most=longest),
        plots.Reached(curves=by_steps, label="environment steps", most=env_steps[-1], unit="steps"),
    ]
    plots.success_over(panels, pi0.SUCCESS_LEVEL, name="confirm_pi0.png")


if __name__ == "__main__":
    draw(by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report))
