"""GRPO under asynchrony: groups are what the layout says, whatever arrives when."""

import random
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.learner import with_estimates
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from tests.loops.virtual import run
from tests.making import plan, rollout

GROUP, HORIZON, EPOCHS = 4, 3, 2
SETTINGS = LocalSettings(
    algorithm="grpo",
    group_size=GROUP,
    total_envs=16,
    horizon=HORIZON,
    rollout_epochs=EPOCHS,
    global_batch_size=96,
    micro_batch_size=96,
)


def scores_of(seed):
    """The return of every episode of a batch, [epochs, environments]."""
    return np.random.default_rng(seed).integers(0, 3, (EPOCHS, 16)).astype(np.float32)


def by_layout(scores):
    """Each group by itself, where the synchronous loop has it."""
    advantages = np.zeros_like(scores)
    for epoch in range(EPOCHS):
        for first in range(0, 16, GROUP):
            members = scores[epoch, first : first + GROUP]
            relative = (members - members.mean()) / (members.std(ddof=1) + 1e-6)
            advantages[epoch, first : first + GROUP] = relative
    return advantages


def pieces_of(layout, ticket, scores, *, member_too_old=False):
    """The rollout of one shard; `member_too_old` makes one action of one member older than allowed."""
    pieces, oldest = [], -1 if member_too_old else 0
    for part, one in enumerate(rollout(layout, ticket, decisions=HORIZON, oldest=oldest, newest=0)):
        first = ticket.shard * layout.envs_per_shard + part * layout.piece_size
        rewards = torch.zeros(HORIZON, layout.piece_size)
        rewards[-1] = torch.from_numpy(scores[ticket.epoch, first : first + layout.piece_size])
        payload = {"rewards": rewards, "ended": torch.zeros(HORIZON + 1, layout.piece_size, dtype=torch.bool)}
        pieces.append(replace(one, payload=payload))
    return pieces


async def arrivals(layout, scores, chance, failing):
    """The pieces of one batch in the order in which learner ranks took them."""
    broker = TrajectoryBroker(layout, max_staleness=0, until=1, deadline_s=8.0)
    arrived, refused = [], 0
    while (ticket := await somebody(broker, layout, chance)) is not None:
        fails = chance.random() < failing and refused < 6
        refused += fails
        await broker.put(ticket, pieces_of(layout, ticket, scores, member_too_old=fails))
        for rank in range(layout.learner_ranks):
            if chance.random() < 0.5 and broker.buffer.waiting(0, rank):
                arrived += (await broker.take(rank, 0, whole=False))[0]
    for rank in range(layout.learner_ranks):
        arrived += broker.buffer.take(0, rank)
    broker.publish(1)  # which would raise if a piece had not been taken
    assert sum(broker.ledger.refused.values()) == refused * layout.envs_per_shard
    return arrived


async def somebody(broker, layout, chance):
    """The ticket of any shard that may start a rollout."""
    for shard in chance.sample(range(layout.shards), layout.shards):
        if not broker.gate.finished(shard):
            return await broker.admit(shard)
    return None


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    shards=st.sampled_from([1, 2, 4]),
    ranks=st.sampled_from([1, 2, 4]),
    failing=st.floats(0, 0.6),
)
def test_groups_that_arrive_in_any_order_and_fail_in_part_have_the_advantages_of_the_layout(
    seed, shards, ranks, failing
):
    layout = plan(
        total_envs=16,
        shards_per_worker=shards,
        group_size=GROUP,
        rollout_epochs=EPOCHS,
        learner_ranks=ranks,
    )
    scores, chance = scores_of(seed), random.Random(seed)

    found = np.full((EPOCHS, 16), np.nan, dtype=np.float32)
    for piece in run(arrivals(layout, scores, chance, failing)):
        first = piece.ticket.shard * layout.envs_per_shard + piece.part * layout.piece_size
        # What a streaming learner does with a piece when it arrives, knowing no other.
        advantages = with_estimates(piece.payload, SETTINGS)["advantages"]
        assert torch.equal(advantages, advantages[:1].expand_as(advantages))
        place = found[piece.ticket.epoch, first : first + piece.size]
        assert np.isnan(place).all()
        place[:] = advantages[0].numpy()
    assert np.allclose(found, by_layout(scores), atol=1e-5)


def test_groups_formed_by_arrival_would_not_pass_these_tests():
    scores = scores_of(0)
    by_arrival = by_layout(np.roll(scores, 2, axis=1))
    assert not np.allclose(np.roll(by_arrival, -2, axis=1), by_layout(scores), atol=1e-2)
