import asyncio

from rlinf_async.core.types import ActionRequest
from rlinf_async.loops.queues import SharedQueues
from tests.loops.virtual import settle


def asked(node="", mode="train"):
    return ActionRequest(shard=0, number=0, size=1, payload=None, mode=mode, node=node)


async def test_the_queue_of_another_node_is_open_while_none_of_its_own_ranks_waits():
    queues = SharedQueues(max_size=8, deadline_s=60.0)
    here, there = (queues.of(asked(node)) for node in ("here", "there"))
    assert list(queues.open_to(0, "here")) == [here, there]
    waiting = asyncio.create_task(there.bell.first(lambda: None, waiting_for=lambda: "a request"))
    await settle()
    assert list(queues.open_to(0, "here")) == [here]
    assert list(queues.open_to(1, "there")) == [there, here]
    waiting.cancel()


def test_what_a_learner_asks_waits_in_a_queue_of_its_own_that_has_every_second_turn():
    queues = SharedQueues(max_size=8, deadline_s=60.0)
    scores = queues.of(asked("far", mode="score"))
    here, there = (queues.of(asked(node)) for node in ("here", "there"))
    assert queues.of(asked("here", mode="score")) is scores
    assert list(queues.open_to(0, "here")) == [here, there, scores]
    queues.taken(0, there)
    assert list(queues.open_to(0, "here")) == [scores, here, there]
    assert list(queues.open_to(1, "here")) == [here, there, scores]
    queues.taken(0, scores)
    assert list(queues.open_to(0, "here")) == [here, there, scores]


def test_a_queue_whose_requests_are_younger_than_a_rank_wants_is_left_out():
    queues = SharedQueues(max_size=8, deadline_s=60.0)
    queue = queues.of(asked("here"))
    for arrived in (3.0, 4.0):
        queue.batcher.add(asked("here"), arrived)
    assert queue not in queues.open_to(0, "there", arrived_by=2.9)
    assert queue in queues.open_to(0, "there", arrived_by=3.0)
    queue.batcher.take(9.0)
    assert queue in queues.open_to(0, "there", arrived_by=0.0)


async def test_a_request_wakes_one_rank_although_others_wait_there_and_elsewhere():
    queues, tried = SharedQueues(max_size=8, deadline_s=60.0), []
    here, there = (queues.of(asked(node)) for node in ("here", "there"))
    waiting = [
        asyncio.create_task(queue.bell.first(lambda rank=rank: tried.append(rank), waiting_for=str))
        for rank, queue in enumerate((here, here, there))
    ]
    await settle()
    tried.clear()
    queues.wake(here)
    await settle()
    assert tried == [0]
    for one in waiting:
        one.cancel()
