"""Two ideas of veRL's, weighed on the virtual clock before anything is built.

    python -m benchmarks.schedules.ideas

Stated before the first run. An idea is worth building if it makes the same work 10 % faster (a gain of 1.10)
in a case. Cases are simulators as in the bench's `libero`, 48 of them with a shard each, four accelerators,
and every level on. Training takes half as long as a rollout of the slowest simulator, as long, or twice as
long, on two learner ranks; an answer takes as long as in the bench, 8 times that or 32 times. A step is the
mean of the last six of eight batches.

`lend`: idle learner ranks answer requests. It is held against the best division of the four accelerators. Its
step is taken for shorter than it can be, as the longer of two bounds: every learner rank answers, too, and
trains as fast as without, in the best division for that; and four accelerators do the least work, of both
kinds, that any of these runs has done for a batch, and never idle. (A trial of one case had taken the work of
the run itself, which more ranks make larger: they answer smaller batches.)

`refill`: groups without signal, of which there is a share, are collected again before the batch is trained,
so that a batch is full of groups that have some. Two accelerators are inference, which is as fast as in the
bench. What counts are groups with signal that are trained in a second, against training on everything, and
against `skip`, which leaves groups without signal out of the update and collects none instead. No pass is
made over groups that are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.bench.scenarios import LIBERO_ENV, SLOWEST_S
from rlinf_async.lab.emulated.service import TASK_COUNT
from rlinf_async.lab.outputs import write_json
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.simulators import DurationDraws, SimulatorTimes
from rlinf_async.lab.virtual.times import PolicyTimes, Times, TrainingTimes
from rlinf_async.loops.run_settings import RunSettings

ENVS, DECISIONS, BATCHES, LEAST_GAIN = 48, 8, 8, 1.10
ACCELERATORS = 4
DIVISIONS = (1, 2, 3)
"""Learner ranks; the other accelerators are inference."""
TRAINING = {"half": 0.5, "as long": 1.0, "twice": 2.0}
ANSWERS = (1, 8, 32)
SILENT = (0.5, 0.75)
"""Shares of groups without signal."""
OUTPUT = Path(__file__).with_name("ideas.json")


def settings(*, learners: int, inference: int, epochs: int = 1) -> RunSettings:
    """A run of 48 environments, with `epochs` rollouts of each in a batch."""
    plan = ShardPlan(
        total_envs=ENVS,
        env_workers=1,
        inference_ranks=inference,
        learner_ranks=learners,
        shards_per_worker=ENVS,
        rollout_epochs=epochs,
    )
    return RunSettings(
        asynchrony=AsyncConfig.from_mapping({"mode": "full", "advanced": {"balance": "tasks"}}),
        plan=plan,
        horizon=DECISIONS,
        batches=BATCHES,
        global_batch_size=plan.trajectories_per_batch * DECISIONS // 2,
        micro_batch_size=96 // learners,
        update_epoch=1,
        max_batch_size=-(-ENVS // inference),
        normalizes=False,
        seed=0,
    )


def times(*, training: float, slower: float = 1.0) -> Times:
    """Service times: training takes two learner ranks `training` rollouts of the slowest, an answer `slower`
    times as long as in the bench.
    """
    spread = (LIBERO_ENV.slowest - LIBERO_ENV.fastest) / (TASK_COUNT - 1)
    return Times(
        simulators=SimulatorTimes(
            decision=DurationDraws(mean=LIBERO_ENV.decision_s, cv=LIBERO_ENV.cv),
            reset=DurationDraws(mean=LIBERO_ENV.reset_s, cv=0.25),
            tasks=tuple(LIBERO_ENV.fastest + spread * task for task in range(TASK_COUNT)),
        ),
        policy=PolicyTimes(fixed_s=0.01 * slower, env_s=0.0003 * slower),
        training=TrainingTimes(sample_s=2 * training * SLOWEST_S / (ENVS * DECISIONS)),
    )


def step(of: RunSettings, taking: Times) -> tuple[float, float]:
    """Seconds of a batch, and of the accelerators' work for it."""
    planned = predict(of, taking)
    seconds = (planned.trained_at[-1] - planned.trained_at[1]) / (BATCHES - 2)
    ranks = {"inference": of.plan.inference_ranks, "learner": of.plan.learner_ranks}
    work = [
        report.seconds * sum(count * report.busy[kind].mean for kind, count in ranks.items())
        for report in planned.reports[2:]
    ]
    return seconds, sum(work) / len(work)


def lend(training: float, slower: float) -> Mapping[str, float]:
    """The best division, and no more than lending can give."""
    taking = times(training=training, slower=slower)
    divided = [
        step(settings(learners=learners, inference=ACCELERATORS - learners), taking) for learners in DIVISIONS
    ]
    lent = [step(settings(learners=learners, inference=ACCELERATORS), taking) for learners in DIVISIONS]
    best = min(seconds for seconds, _ in divided)
    least_work = min(work for _, work in (*divided, *lent)) / ACCELERATORS
    bound = max(min(seconds for seconds, _ in lent), least_work)
    return {"divided_s": best, "lent_s": bound, "gain": best / bound}


def refill(training: float, silent: float) -> Mapping[str, float]:
    """Signal per second: with everything trained, with nothing trained in vain, and with full batches."""
    epochs = round(1 / (1 - silent))
    plain, taking = settings(learners=2, inference=2), times(training=training)
    sparing = times(training=training * (1 - silent))
    everything = (1 - silent) / step(plain, taking)[0]
    skip = (1 - silent) / step(plain, sparing)[0]
    full = 1 / step(settings(learners=2, inference=2, epochs=epochs), sparing)[0]
    return {"gain": full / everything, "gain_over_skip": full / skip, "gain_of_skip": skip / everything}


def main() -> None:
    """Weigh both, print the lines, and keep them."""
    lent = {
        f"training {name}, answers x{slower}": lend(share, slower)
        for name, share in TRAINING.items()
        for slower in ANSWERS
    }
    refilled = {
        f"training {name}, {silent:.0%} silent": refill(share, silent)
        for name, share in TRAINING.items()
        for silent in SILENT
    }
    for idea, cases in {"lend": lent, "refill": refilled}.items():
        for case, found in cases.items():
            print(idea, case, {name: round(value, 3) for name, value in found.items()})
    write_json(OUTPUT, {"least_gain": LEAST_GAIN, "lend": lent, "refill": refilled})


if __name__ == "__main__":
    main()
