"""Predict, on the virtual clock, the effect of the number of shards on speed if episodes end early.

    python -m benchmarks.dead_work.shards

Times and lengths are those of the bench's scenario `ends-early`: 64 environments, 32 decisions per rollout,
and successes after 60/512 to 193/512 of the rollout. In `apart` each simulator has a process and a core of
its own; in `in turn` the process of one env worker steps all simulators, and each step takes a tenth of the
time. A shard is stepped until its last episode ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any

import typer

from rlinf_async.config import AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.emulated.service import TASK_COUNT
from rlinf_async.lab.table import markdown
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.times import DurationDraws, PolicyTimes, SimulatorTimes, Times, TrainingTimes
from rlinf_async.loops.run_settings import RunSettings

EARLY_END_SCENARIO = SCENARIOS_BY_NAME["ends-early"]
SHARD_COUNTS = (1, 2, 4, 8, 16, 32, 64)
SUCCESS_SHARES = (0.6, 0.95)
WARM_UP_BATCHES, MEASURED_BATCHES, TAIL_BATCHES = 4, 6, 2
IN_TURN_SHARE = 0.1
"""Factor on simulator times of `in turn`: with the full times, simulation would hide every other effect."""


def settings(mode: str, shards: int) -> RunSettings:
    """Return the settings of a run of the scenario in `async.mode` `mode`; its one env worker has `shards`
    shards.
    """
    asynchrony = AsyncConfig.from_mapping({"mode": mode, "advanced": {"balance": "tasks"}})
    plan = ShardPlan(
        total_envs=EARLY_END_SCENARIO.envs,
        env_workers=1,
        inference_ranks=1,
        learner_ranks=1,
        shards_per_worker=shards,
    )
    return RunSettings(
        asynchrony=asynchrony,
        plan=plan,
        horizon=EARLY_END_SCENARIO.decisions,
        batches=WARM_UP_BATCHES + MEASURED_BATCHES + TAIL_BATCHES,
        global_batch_size=EARLY_END_SCENARIO.samples // EARLY_END_SCENARIO.optimizer_steps,
        micro_batch_size=EARLY_END_SCENARIO.micro_batch_size,
        update_epoch=EARLY_END_SCENARIO.update_epoch,
        max_batch_size=EARLY_END_SCENARIO.envs,
        normalizes=True,
        seed=0,
        skips_ended=asynchrony.skip.ended,
        left_out=LeftOut(masked=asynchrony.skip.masked),
    )


def times(success: float, *, in_turn: bool) -> Times:
    """Return the scenario's times, with the same share `success` of successful episodes in all rollouts."""
    env, policy = EARLY_END_SCENARIO.env, EARLY_END_SCENARIO.policy
    assert env is not None
    assert policy is not None
    assert env.lengths is not None
    factor = IN_TURN_SHARE if in_turn else 1.0
    return Times(
        simulators=SimulatorTimes(
            decision=DurationDraws(mean=env.decision_s * factor, cv=env.cv),
            reset=DurationDraws(mean=env.reset_s * factor, cv=0.25),
            tasks=tuple(map(env.factor, range(TASK_COUNT))),
            lengths=replace(env.lengths, success=success, gain=0.0),
            in_turn=in_turn,
        ),
        policy=PolicyTimes(by_size=((1, policy.act_s(1)),), env_s=policy.act_sample_s),
        training=TrainingTimes(sample_s=policy.train_sample_s, score_share=policy.score_share),
        cores=1 if in_turn else 0,
    )


def row(mode: str, shards: int, success: float, *, in_turn: bool) -> dict[str, Any]:
    """Return seconds per batch, decisions per second, and the share of env steps that are left out."""
    planned = predict(settings(mode, shards), times(success, in_turn=in_turn))
    at = planned.trained_at
    seconds = (at[WARM_UP_BATCHES + MEASURED_BATCHES - 1] - at[WARM_UP_BATCHES - 1]) / MEASURED_BATCHES
    reports = planned.reports[WARM_UP_BATCHES : WARM_UP_BATCHES + MEASURED_BATCHES]
    kinds = ("env_steps", "decisions")
    skipped = {name: fmean(report.skipped.get(name, 0.0) for report in reports) for name in kinds}
    return {
        "seconds": seconds,
        "decisions": EARLY_END_SCENARIO.samples * (1 - skipped["decisions"]) / seconds,
        "skipped": skipped["env_steps"],
    }


def rows(success: float, *, in_turn: bool) -> Iterator[list[str]]:
    """Yield a table row for each number of shards: `full`, then `lean`, which waits for all shards."""
    for shards in SHARD_COUNTS:
        cells = [row(mode, shards, success, in_turn=in_turn) for mode in ("full", "lean")]
        yield [
            str(shards),
            *(
                text
                for one in cells
                for text in (f"{one['seconds']:.2f}", f"{one['decisions']:.0f}", f"{one['skipped']:.0%}")
            ),
        ]


FIGURE_NAMES = ("s a batch", "decisions/s", "steps left out")
TABLE_HEAD = ["shards", *(f"`{mode}`: {what}" for mode in ("full", "lean") for what in FIGURE_NAMES)]


def main(
    success: Annotated[
        list[float] | None, typer.Option(help="Shares of episodes that succeed; by default 0.6 and 0.95.")
    ] = None,
) -> None:
    """Print a table for each share and each way of stepping."""
    for in_turn in (False, True):
        for share in success or SUCCESS_SHARES:
            typer.echo(f"\n{'in turn' if in_turn else 'apart'}, {share:.0%} succeed\n")
            typer.echo(markdown(TABLE_HEAD, list(rows(share, in_turn=in_turn))))


if __name__ == "__main__":
    typer.run(main)
