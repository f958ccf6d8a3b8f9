"""Small runs of the local host."""

import threading
from functools import partial

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy

small_policy = partial(GaussianPolicy, hidden=8)


def small(block=None, **changes):
    """Four batches of two rollouts of 16 environments, in two optimizer steps that are made twice."""
    sizes = {
        "asynchrony": AsyncConfig.from_mapping(block),
        "total_envs": 16,
        "env_workers": 2,
        "horizon": 5,
        "rollout_epochs": 2,
        "batches": 4,
        "global_batch_size": 80,
        "micro_batch_size": 20,
        "update_epoch": 2,
        "lr": 1e-3,
    }
    return LocalSettings(**sizes | changes)


def same(one, other):
    """Whether weights are equal bit for bit."""
    return all(torch.equal(one[name], other[name]) for name in one)


def nobody_is_left():
    names = [thread.name for thread in threading.enumerate()]
    return not [name for name in names if name.startswith(("shard-", "inference-", "learner"))]
