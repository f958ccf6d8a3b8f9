"""Runs that are small enough to be worked out by hand: all times are exact in binary."""

from rlinf_async.config import AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.virtual.times import DurationDraws, PolicyTimes, SimulatorTimes, Times, TrainingTimes
from rlinf_async.loops.run_settings import RunSettings


def settings(
    asynchrony=None,
    *,
    horizon=4,
    batches=6,
    update_epoch=1,
    micro_batch_size=8,
    normalizes=True,
    episodes_end=False,
    **plan,
):
    """With `episodes_end` the run leaves out what comes after an end, as its block says."""
    sizes = {
        "total_envs": 8,
        "env_workers": 1,
        "inference_ranks": 1,
        "learner_ranks": 1,
        "shards_per_worker": 1,
    }
    plan = ShardPlan(**{**sizes, **plan})
    samples = plan.trajectories_per_batch * horizon
    asynchrony = AsyncConfig.from_mapping(asynchrony)
    return RunSettings(
        asynchrony=asynchrony,
        skips_ended=episodes_end and asynchrony.skip.ended,
        left_out=LeftOut(masked=episodes_end and asynchrony.skip.masked),
        plan=plan,
        horizon=horizon,
        batches=batches,
        global_batch_size=samples,
        micro_batch_size=micro_batch_size,
        update_epoch=update_epoch,
        max_batch_size=plan.total_envs,
        normalizes=normalizes,
        seed=0,
    )


def times(*, decision=1.0, reset=0.5, tasks=(1.0,), forward=0.25, sample=0.0625, score=0.0, **more):
    names = ("vectorised", "in_turn", "seed", "lengths")
    simulators = {name: more.pop(name) for name in names if name in more}
    return Times(
        simulators=SimulatorTimes(
            decision=decision if isinstance(decision, DurationDraws) else DurationDraws(mean=decision),
            reset=DurationDraws(mean=reset),
            tasks=tasks,
            **simulators,
        ),
        policy=PolicyTimes(by_size=((1, forward),)),
        training=TrainingTimes(sample_s=sample, score_share=score, **more.pop("training", {})),
        **more,
    )


def step_seconds(planned):
    """Seconds of every batch after the first."""
    return [b - a for a, b in zip(planned.trained_at, planned.trained_at[1:], strict=False)]
