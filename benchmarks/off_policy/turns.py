"""RLinf's asynchronous SAC and the prototype by turns, in the same processes.

Every turn has keys of channels, a replay and episodes of its own. RLinf's loops end only by cancelling, which
loses items of a channel: here an item ends the reader, and so the turn.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from rlinf.scheduler.channel.channel import DEFAULT_KEY
from rlinf.workers.actor.async_fsdp_sac_policy_worker import AsyncEmbodiedSACFSDPPolicy
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker

from benchmarks.off_policy.prototype import DynamicRolloutWorker, ShardedEnvWorker
from benchmarks.off_policy.workload import note

OVER = "the turn is over"
AGAIN_S = 0.3


class TurnOver(Exception):
    """Ends the reader of a channel when its turn is over."""


class TurnChannel:
    """The keys of one turn in a channel of RLinf's."""

    def __init__(self, channel: Any, turn: int) -> None:
        self._channel, self._turn = channel, turn
        self._read: list[Any] = []
        self._over = False

    def put(self, item: Any, weight: int = 0, key: Any = DEFAULT_KEY, async_op: bool = False) -> Any:
        return self._channel.put(item, weight, self._own(key), async_op)

    def get(self, key: Any = DEFAULT_KEY, async_op: bool = False) -> Any:
        if self._over:
            raise TurnOver
        self._read.append(key)
        work = TurnWork(self._channel.get(self._own(key), async_op=True), key, self._read)
        return work if async_op else work.wait()

    def qsize(self) -> int:
        return self._channel.qsize(self._own(DEFAULT_KEY))

    def close(self) -> None:
        """End those that read in this process."""
        self._over = True
        for key in list(self._read):
            self._channel.put(OVER, key=self._own(key), async_op=True)

    def _own(self, key: Any) -> str:
        return f"{self._turn}:{key}"


class TurnWork:
    """A `get` of RLinf's channel that may end with the turn."""

    def __init__(self, work: Any, key: Any, read: list[Any]) -> None:
        self._work, self._key, self._keys = work, key, read

    def done(self) -> bool:
        return self._work.done()

    def wait(self) -> Any:
        return self._found(self._work.wait())

    async def async_wait(self) -> Any:
        return self._found(await self._work.async_wait())

    def _found(self, item: Any) -> Any:
        self._keys.remove(self._key)
        if isinstance(item, str) and item == OVER:
            raise TurnOver
        return item


class TurningEnvWorker(ShardedEnvWorker):
    """RLinf's env worker, or the prototype's, turn by turn."""

    def begin_turn(self, mode: str, frames: str) -> None:
        self._mode, self.env_decoupled_mode = mode, mode == "decoupled"
        self.batch_router: dict[str, list[Any]] = {}
        for env in self.env_list:
            env.show(frames)

    async def _interact(self, *channels: Any) -> None:
        self._channels = channels
        with suppress(TurnOver):
            if self._mode == "sharded":
                await super()._interact(*channels)
            else:
                # RLinf's loop waits for actions without yielding, and could not be stopped.
                stock = lambda: asyncio.run(AsyncEnvWorker._interact(self, *channels))  # noqa: E731
                await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), stock)

    async def stop(self) -> None:
        await _close(self._channels, self._interact_task)


class TurningRolloutWorker(DynamicRolloutWorker):
    """RLinf's rollout worker, or the prototype's, turn by turn."""

    def begin_turn(self, mode: str) -> None:
        self._mode, self.env_decoupled_mode = mode, mode == "decoupled"
        self.batch_router: dict[str, list[Any]] = {"rollout_results": []}
        self._generate_task = None

    async def _generate(self, *channels: Any) -> None:
        self._channels = channels
        with suppress(TurnOver):
            if self._mode == "sharded":
                await super()._generate(*channels)
            else:
                await AsyncMultiStepRolloutWorker._generate(self, *channels)

    async def stop(self) -> None:
        await _close(self._channels, self._generate_task)


class TurningLearner(AsyncEmbodiedSACFSDPPolicy):
    """RLinf's asynchronous SAC learner; it notes each update, and the samples that reach its replay."""

    def begin_turn(self) -> None:
        self.should_stop, self._recv_queue, self._recv_rollout_thread = False, None, None
        self.setup_sac_components()  # an empty replay

    async def recv_rollout_trajectories(self, input_channel: Any) -> None:
        self._channel = input_channel
        await super().recv_rollout_trajectories(input_channel)

    def _recv_rollout_thread_main(self, input_channel: Any) -> None:
        with suppress(TurnOver):
            super()._recv_rollout_thread_main(input_channel)

    def update_one_epoch(self, *args: Any, **kwargs: Any) -> Any:
        found = super().update_one_epoch(*args, **kwargs)
        note("updates", 1)
        return found

    def _drain_received_trajectories(self, max_trajectories: int | None = None) -> None:
        before = self.replay_buffer.total_samples
        super()._drain_received_trajectories(max_trajectories)
        if (added := self.replay_buffer.total_samples - before) > 0:
            note("in replay", added)

    async def stop(self) -> None:
        self.should_stop = True
        self._channel.close()
        await super().stop()


async def _close(channels: tuple[Any, ...], task: Any) -> None:
    while not task.done():
        for channel in channels:
            if isinstance(channel, TurnChannel):
                channel.close()
        await asyncio.sleep(AGAIN_S)
