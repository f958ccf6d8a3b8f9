"""Records with defaults, so that a test names only what it is about."""

import itertools
from concurrent.futures import Future

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.meters import Shares, Spread


def ticket(shard=0, batch=0, epoch=0, version=0):
    return Ticket(shard=shard, batch=batch, epoch=epoch, place=shard, version=version)


def piece(of, *, part=0, rank=0, size=1, oldest=None, newest=None, env_steps=1, payload=None):
    oldest = of.version if oldest is None else oldest
    return Piece(
        ticket=of,
        part=part,
        rank=rank,
        size=size,
        oldest=oldest,
        newest=oldest if newest is None else newest,
        env_steps=env_steps,
        payload=payload,
    )


def given(result):
    """A future that has its result, as of scores that have come."""
    future = Future()
    future.set_result(result)
    return future


def accept(learner, pieces):
    """Give a learner pieces, as many of which are taken in as can be."""
    while learner.accept(pieces):
        pieces = ()


def rollout(plan, of, *, decisions=1, **fields):
    """Every piece of the rollout of one ticket."""
    steps = plan.piece_size * decisions
    return [
        piece(
            of,
            part=part,
            rank=plan.learner_rank(of.place, part),
            size=plan.piece_size,
            env_steps=steps,
            **fields,
        )
        for part in range(plan.parts)
    ]


def plan(**changes):
    """Two shards of one environment each, one process per component."""
    one = {
        "total_envs": 2,
        "env_workers": 1,
        "inference_ranks": 1,
        "learner_ranks": 1,
        "shards_per_worker": 2,
    }
    return ShardPlan(**one | changes)


NUMBERS = itertools.count()


def request(shard=0, size=1, payload=None, mode="train", node="", lap=None):
    number = next(NUMBERS)
    return ActionRequest(
        shard=shard, number=number, size=size, payload=payload, mode=mode, node=node, lap=lap
    )


def run_settings(**changes):
    """One batch of one decision from each environment of `plan()`, in one optimizer step."""
    one = {
        "asynchrony": AsyncConfig(),
        "plan": plan(),
        "horizon": 1,
        "batches": 1,
        "global_batch_size": 2,
        "micro_batch_size": 2,
        "update_epoch": 1,
        "max_batch_size": 2,
        "normalizes": True,
        "seed": 0,
    }
    return RunSettings(**one | changes)


class Clock:
    """A clock that stands still unless the test moves it."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def spread(*values):
    made = Spread()
    for value in values:
        made.add(value)
    return made


def step_report(step=1, *, busy=None, **changes):
    """A step of a second and ten environment steps; `busy` is a part's share of it."""
    one = {
        "step": step,
        "total": 9,
        "seconds": 1.0,
        "env_steps": 10,
        "episode_return": None,
        "success": None,
        "busy": {name: Shares(share, share) for name, share in (busy or {}).items()},
        "staleness": Spread(),
        "batch_size": Spread(),
        "batch_wait": Spread(),
    }
    return StepReport(**one | changes)


def drawn_plan(draw, **sizes):
    """A plan whose sizes `draw` takes from those that are given, anew until they divide."""
    while True:
        try:
            return ShardPlan(**{name: draw(some) for name, some in sizes.items()})
        except ValueError:
            continue
