"""What the size of shards does where episodes end early, on the virtual clock.

    python -m benchmarks.dead_work.shards

Times and lengths are those of the bench's scenario `ends-early`: 64 environments, 32 decisions a rollout, a
success after 60/512 to 193/512 of it. `apart` has a process and a core for each simulator, `in turn` all of
them in the process of one env worker, a tenth as long each. A shard is stepped until its last episode ends.
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

SCENARIO = SCENARIOS_BY_NAME["ends-early"]
SHARDS = (1, 2, 4, 8, 16, 32, 64)
SUCCESS = (0.6, 0.95)
WARM_UP, STEPS, TAIL = 4, 6, 2
IN_TURN_SHARE = 0.1
"""Simulators that step in one process are to be this much faster, or nothing else would matter."""


def settings(mode: str, shards: int) -> RunSettings:
    """A run of the scenario in a mode of `async`, with so many shards of its one env worker."""
    asynchrony = AsyncConfig.from_mapping({"mode": mode, "advanced": {"balance": "tasks"}})
    plan = ShardPlan(
        total_envs=SCENARIO.envs, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=shards
    )
    return RunSettings(
        asynchrony=asynchrony,
        plan=plan,
        horizon=SCENARIO.decisions,
        batches=WARM_UP + STEPS + TAIL,
        global_batch_size=SCENARIO.samples // SCENARIO.optimizer_steps,
        micro_batch_size=SCENARIO.micro_batch_size,
        update_epoch=SCENARIO.update_epoch,
        max_batch_size=SCENARIO.envs,
        normalizes=True,
        seed=0,
        skips_ended=asynchrony.skip.ended,
        left_out=LeftOut(masked=asynchrony.skip.masked),
    )


def times(success: float, *, in_turn: bool) -> Times:
    """The scenario's times, with one share of success in all rollouts."""
    env, policy = SCENARIO.env, SCENARIO.policy
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
    """Seconds a batch, decisions in a second, and the share of steps that were left out."""
    planned = predict(settings(mode, shards), times(success, in_turn=in_turn))
    at = planned.trained_at
    seconds = (at[WARM_UP + STEPS - 1] - at[WARM_UP - 1]) / STEPS
    reports = planned.reports[WARM_UP : WARM_UP + STEPS]
    kinds = ("env_steps", "decisions")
    skipped = {name: fmean(report.skipped.get(name, 0.0) for report in reports) for name in kinds}
    return {
        "seconds": seconds,
        "decisions": SCENARIO.samples * (1 - skipped["decisions"]) / seconds,
        "skipped": skipped["env_steps"],
    }


def rows(success: float, *, in_turn: bool) -> Iterator[list[str]]:
    """Yield a line for each number of shards: `full`, and `lean`, which waits for all of them."""
    for shards in SHARDS:
        cells = [row(mode, shards, success, in_turn=in_turn) for mode in ("full", "lean")]
        yield [
            str(shards),
            *(
                text
                for one in cells
                for text in (f"{one['seconds']:.2f}", f"{one['decisions']:.0f}", f"{one['skipped']:.0%}")
            ),
        ]


FIGURES = ("s a batch", "decisions/s", "steps left out")
HEAD = ["shards", *(f"`{mode}`: {what}" for mode in ("full", "lean") for what in FIGURES)]


def main(
    success: Annotated[list[float], typer.Option(help="Shares of episodes that succeed.")] = list(SUCCESS),  # noqa: B006
) -> None:
    """Print a table for each share and each way of stepping."""
    for in_turn in (False, True):
        for share in success:
            typer.echo(f"\n{'in turn' if in_turn else 'apart'}, {share:.0%} succeed\n")
            typer.echo(markdown(HEAD, list(rows(share, in_turn=in_turn))))


if __name__ == "__main__":
    typer.run(main)
