"""Service records of an imagined run, in which everything takes a round number of seconds."""

from rlinf_async.lab.bench.scenarios import PolicyService, Scenario
from rlinf_async.lab.emulated.service import EnvService

TINY = Scenario(
    name="tiny",
    what="two environments, two decisions, one micro-batch a step",
    env=EnvService(decision_s=1.0, reset_s=1.0),
    policy=PolicyService(act_fixed_s=0.5, act_sample_s=0.0, train_sample_s=0.25, score_share=0.5),
    envs=2,
    decisions=2,
    update_epoch=1,
    optimizer_steps=1,
    micro_batch_size=4,
)


def record(kind, began, ended, **facts):
    return {"kind": kind, "began": began, "ended": ended, **facts}


def training(ended, rollout, *, version=0, seconds=1.0):
    """A micro-batch with all four samples of a rollout of both environments."""
    samples = [10 * rollout + index for index in range(4)]
    return record("train", ended - seconds, ended, size=4, samples=samples, oldest=version)


def stepping(began, *seconds, kind="step"):
    """Environments 0, 1, ... step together, each as long as is said."""
    return record(kind, began, began + max(seconds), first=0, seconds=list(seconds))


def rollout(began):
    """Ten seconds of TINY: a reset, two decisions of 1 and 3 seconds, each after its answer, and a rest."""
    return (
        stepping(began, 1.0, 1.0, kind="reset"),
        acting(began + 1.0),
        stepping(began + 1.5, 1.0, 3.0),
        acting(began + 4.5),
        stepping(began + 5.0, 1.0, 3.0),
    )


def scoring(began, seconds=2.0):
    return record("score", began, began + seconds, size=4)


def acting(began, size=2):
    return record("act", began, began + 0.5, size=size)


def in_order(*records):
    return sorted(records, key=lambda one: one["ended"])
