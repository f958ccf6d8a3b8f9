"""A shard that begins a rollout tells its environments whose tasks to play."""

import asyncio

from rlinf_async.core.types import Ticket
from rlinf_async.loops.task_taking import taking_on
from tests.making import plan


class Taker:
    def __init__(self):
        self.taken = []

    def take_on(self, place, number):
        self.taken.append((place, number))


def test_tasks_are_those_of_the_place_and_the_number_of_the_rollout_whoever_collects_it():
    taker = Taker()
    before = taking_on(taker, plan(rollout_epochs=3))
    order = [(batch, epoch) for batch in range(4) for epoch in range(3)]
    for batch, epoch in order:
        asyncio.run(before(Ticket(shard=0, batch=batch, epoch=epoch, place=1, version=0)))
    assert taker.taken == [(1, number) for number in range(len(order))]
