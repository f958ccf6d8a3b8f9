"""How weights travel from the learner to inference while both work: as buckets in Ray's object store.

The buckets are made and applied by RLinf's own weight syncer; only the transport is another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
import torch

from rlinf_async.core.spans import SpanLog
from rlinf_async.hosts.rlinf.wire import pack, unpack

Bucket = dict[str, torch.Tensor]


class WeightSender:
    """Copies the weights of one learner rank, and offers them to inference from a thread of its own.

    Every rank takes part in a copy, because shards are gathered for it; the weight sender alone keeps it.
    An error in the thread is raised by `sent`, and by the next `offer`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._sending: Future[None] | None = None

    async def offer(self, version: int, trajectories: Any, spans: SpanLog) -> float:
        """Copy the present weights, to be sent as those of `version`; the seconds that it took."""
        began = time.monotonic()
        await self.sent()  # at most one copy waits for its way
        with spans.span("copy", version=version):
            buckets = await snapshot(self._actor, version)
        if self._actor._is_weight_sender:
            self._sending = self._thread.submit(_send, trajectories, version, buckets, spans)
        return time.monotonic() - began

    async def sent(self) -> None:
        """Wait until what was offered last has left this process."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)


async def snapshot(actor: Any, version: int) -> list[Bucket]:
    """The weights of an RLinf actor as its weight syncer sends them; nothing on ranks that do not send."""
    buckets: list[Bucket] = []

    async def keep(bucket: Bucket) -> None:
        if actor._is_weight_sender:
            # Copies in any case: a bucket on the CPU may hold the very parameters that the next step changes.
            buckets.append({name: tensor.detach().to("cpu", copy=True) for name, tensor in bucket.items()})

    syncer, state = actor.weight_syncer, actor.get_rollout_state_dict()
    if not syncer.sender_initialized():
        await syncer.init_sender(
            state_dict=state, send=keep, param_names_need_sync=actor.param_names_need_sync
        )
    await syncer.sync(state, keep, version=version)
    return buckets


async def apply(syncer: Any, model: torch.nn.Module, buckets: Sequence[Bucket]) -> int:
    """Write a snapshot into `model` as RLinf does; the version that it bears."""
    left = iter(buckets)

    async def receive() -> Bucket:
        # The syncer expects them where it would have received them.
        return {name: tensor.to(syncer.bucket_device) for name, tensor in next(left).items()}

    if not syncer.receiver_initialized():
        await syncer.init_receiver(state_dict=model.state_dict(), recv=receive)
    return await syncer.apply(model, receive)


class WeightClient:
    """The inference side of publication, for one rank."""

    def __init__(self, channel: Any, *, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    async def next(self) -> tuple[int, list[Bucket]] | None:
        offered = await self._channel.next_weights.remote(self._rank)
        if offered is None:
            return None
        version, (reference,) = offered
        # Unpacking copies: as much work as the model is large, which is not for the event loop.
        return version, await asyncio.to_thread(unpack, await reference)

    async def applied(self, version: int) -> None:
        await self._channel.weights_applied.remote(self._rank, version)


def _send(trajectories: Any, version: int, buckets: list[Bucket], spans: SpanLog) -> None:
    with spans.span("send", version=version):
        # Not ray.get, which in the process of an asynchronous actor warns of blocking its event loop.
        trajectories.offer_weights.remote(version, [ray.put(pack(buckets))]).future().result()
