"""Rows of a workload whose costs are known, and the step time of a row by a formula of its own."""

from math import log2

from rlinf_async.lab.plan.rows.costs import Costs
from rlinf_async.lab.plan.rows.row import Row

COSTS = Costs(pass_s=12.0, env_s=4.0, rollout_s=1.5, doubling_s=0.125, channel_s=0.0625)


def row(placement="disaggregated", gpus=8, **more):
    return Row(**{"placement": placement, "gpus": gpus, "envs": 8 * gpus, "epochs": 8, **more})


def by_hand(one, costs=COSTS):
    """Seconds of a step of rollouts R, training A and channel X in E epochs."""
    first, second = map(int, one.ratio.split(":"))
    rollout_gpus = one.gpus if one.placement == "collocated" else one.gpus * first / (first + second)
    ranks = one.gpus * second / (first + second) if one.placement == "disaggregated" else one.gpus
    hosted = 2 if one.shards == 2 or "rollout" in one.mode or one.mode == "full" else 1
    split = 1 if one.simulator == "vectorised" else hosted
    rollout = (costs.pass_s + costs.env_s * one.envs / rollout_gpus / split) * one.epochs
    if one.simulator == "vectorised":
        rollout *= hosted
    training = one.envs * one.epochs / ranks * (costs.rollout_s + costs.doubling_s * log2(ranks))
    channel = costs.channel_s * one.envs * one.epochs if one.channel == "one" else 0
    if one.placement != "disaggregated" or "train" not in one.mode:
        return rollout + training + channel
    if one.overlap == "steps":
        return max(rollout, training + channel)
    late = (training + channel) / one.epochs
    return max(rollout + late, rollout / one.epochs + training + channel)
