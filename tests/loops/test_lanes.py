import asyncio

from rlinf_async.core.batching import DynamicBatcher
from rlinf_async.loops.lanes import SharedLanes
from tests.loops.virtual import run, settle


def test_the_lane_of_another_node_is_open_while_none_of_its_own_ranks_waits():
    async def main():
        lanes = SharedLanes(lambda: DynamicBatcher(max_size=8), deadline_s=60.0)
        here, there = lanes.of(0, "here"), lanes.of(1, "there")
        assert list(lanes.open_to(0, "here")) == [here, there]
        waiting = asyncio.create_task(there.bell.first(lambda: None, waiting_for=lambda: "a request"))
        await settle()
        assert list(lanes.open_to(0, "here")) == [here]
        assert list(lanes.open_to(1, "there")) == [there, here]
        waiting.cancel()

    run(main())
