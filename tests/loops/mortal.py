"""Env workers and inference ranks of a `Schedule` that die in the middle of anything and are brought back."""

import asyncio

from rlinf_async.loops.env import run_shard
from rlinf_async.loops.inference import load_next, refresh_weights, serve_policy
from tests.loops import schedule_parts as parts
from tests.making import request, rollout, ticket

LIVES = 4
"""Of a process, at most."""


async def env_worker(schedule, worker):
    """Every shard of an env worker, in one life after the other."""
    shards = list(schedule.plan.shards_of_worker(worker))
    # Those of evaluation are numbered on.
    everything = shards + [schedule.plan.shards + shard for shard in shards]
    for generation in range(LIVES):
        life = parts.Life(generation)
        if await _lives(schedule, life, "env worker", [_collect(schedule, shard, life) for shard in shards]):
            return
        await schedule.nap("load", worker)  # its death is not known yet
        schedule.requests.shards_lost(everything, generation + 1)
        lost = await schedule.broker.shards_lost(shards, "env worker died", generation + 1)
        schedule.out.produced += lost * schedule.plan.envs_per_shard
        schedule.out.refused += lost * schedule.plan.envs_per_shard
        schedule.out.abandoned += lost
        await _late_calls_of_an_env_worker(schedule, shards[0], generation)
        await schedule.nap("load", worker)


def inference_rank(schedule, rank):
    yield _inference_rank(schedule, rank)


async def _inference_rank(schedule, rank):
    for generation in range(LIVES):
        life = parts.Life(generation)
        if await _lives(schedule, life, "inference rank", [_serve(schedule, rank, life)]):
            return
        await schedule.nap("load", rank)
        schedule.weights.rank_lost(rank, generation + 1)
        schedule.requests.rank_lost(rank, generation + 1)
        assert await schedule.requests.take(rank, schedule.node(rank), generation) is None
        assert not schedule.requests.serves(rank, generation)
        schedule.weights.applied(rank, 10**6, generation)  # nobody listens
        assert await schedule.weights.next(rank, generation) is None
        await schedule.nap("load", rank)


async def _lives(schedule, life, kind, loops):
    """Whether the loops of a process have ended; it may be killed at any time, except in its last life."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    while not schedule.working:  # a death before anything was published ends a run
        await asyncio.wait(tasks, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
    dies = life.generation < LIVES - 1 and schedule.rng.random() < 0.8
    seconds = schedule.rng.choice((1, 20, 200)) * schedule.rng.random() if dies else None
    done, running = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    if not running:
        return True
    life.dead = True
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    schedule.out.restarts[kind] += 1
    return False


def _collect(schedule, shard, life):
    return run_shard(
        shard=shard,
        env=parts.Env(schedule, shard, schedule.plan.envs_per_shard, schedule.horizon),
        policy=parts.Asking(schedule, shard, life),
        trajectories=parts.Trajectories(schedule, schedule.broker, life),
        recorder=lambda given: parts.Recorder(schedule, given),
        overlaps=schedule.dynamic,
    )


async def _serve(schedule, rank, life):
    policy, weights = parts.Policy(schedule, rank), parts.Weights(schedule, rank, life)
    await load_next(weights=weights, policy=policy)
    async with asyncio.TaskGroup() as group:
        requests = parts.Requests(schedule, rank, life)
        group.create_task(serve_policy(requests=requests, policy=policy))
        group.create_task(refresh_weights(weights=weights, policy=policy))


async def _late_calls_of_an_env_worker(schedule, shard, generation):
    """What it had sent when it died: none of it counts."""
    assert await schedule.broker.admit(shard, generation) is None
    of = ticket(shard, schedule.broker.gate.version)
    await schedule.broker.put(of, rollout(schedule.plan, of))
    schedule.requests.begin(shard, generation)
    errors = []
    schedule.requests.ask(request(shard), lambda _, error: errors.append(error))
    assert len(errors) == 1
