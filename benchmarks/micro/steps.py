"""CPU time of a step of one environment in an RLinf env worker, in the environment's thread, without Ray.

Two ways take turns: RLinf's step reads values that were read before (`KnownConfig`), as in a run, or the
config itself, as in a user's class with its own step. The environment is emulated and takes no time, but has
work of its own, which is measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.micro.kit import medians
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.worker_process import register_models
from rlinf_async.lab.emulated.env import EmulatedEnv
from tests.hosts.rlinf.workers import in_one_process, with_walks

STEPS, REPEATS = 100, 5
"""Steps of one measurement, and number of measurements; the least one counts."""
OVERRIDES = (
    "async.mode=full",
    "async.rollout.shards=2",
    "env.train.total_num_envs=2",
    "env.train.service.decision_s=0.0",
    "env.train.service.reset_s=0.0",
    "actor.micro_batch_size=2",
    "actor.global_batch_size=16",
)


def _least_us(work: Callable[[], object]) -> float:
    """Return the microseconds of CPU time of one call of `work` in this thread."""
    seconds = []
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(STEPS):
            work()
        seconds.append((time.thread_time() - began) / STEPS)
    return 1e6 * min(seconds)


def _shards() -> tuple[Any, Any, Any]:
    """Return a shard as in a run, one with a worker that reads its config anew, and the environments."""
    register_models()
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(compose_config("bench/emulated", OVERRIDES)), EmulatedEnv)
    ours, anew = worker.train_shard(0), worker.train_shard(0)
    anew._stage.known = None
    for shard in (ours, anew):
        shard._begin()
    return ours, anew, worker.env_list[0]


def measure(rounds: int) -> dict[str, Any]:
    """Measure both by turns; return medians over the rounds, in microseconds."""
    ours, anew, env = _shards()
    actions = torch.zeros(1, 10, 4)
    seen = []
    for _ in range(rounds):
        one = {
            "step_us": _least_us(lambda: ours._with_faults(ours._act(actions))),
            "step_with_reads_us": _least_us(lambda: anew._with_faults(anew._act(actions))),
            "emulated_work_us": _least_us(lambda: env.chunk_step(actions)),
        }
        seen.append({**one, "ratio": one["step_us"] / one["step_with_reads_us"]})
    return {"rounds": rounds, **medians(seen), "ratios": sorted(round(one["ratio"], 2) for one in seen)}
