import asyncio

from rlinf_async.core.batching import DynamicBatcher
from rlinf_async.loops.queues import SharedQueues
from tests.loops.virtual import run, settle


def test_the_queue_of_another_node_is_open_while_none_of_its_own_ranks_waits():
    async def main():
        queues = SharedQueues(lambda: DynamicBatcher(max_size=8), deadline_s=60.0)
        here, there = queues.of(0, "here"), queues.of(1, "there")
        assert list(queues.open_to(0, "here")) == [here, there]
        waiting = asyncio.create_task(there.bell.first(lambda: None, waiting_for=lambda: "a request"))
        await settle()
        assert list(queues.open_to(0, "here")) == [here]
        assert list(queues.open_to(1, "there")) == [there, here]
        waiting.cancel()

    run(main())
