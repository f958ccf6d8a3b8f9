"""How weights travel from the learner to inference while both work: in chunks, through Ray's object store.

What is sent and what the receiver has in the end is what RLinf's own weight syncers would send and leave;
only the transport is another, and does not depend on `weight_syncer.type`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
import torch
from omegaconf import OmegaConf
from rlinf.utils.utils import materialize_tensor, normalize_dtype

from rlinf_async.core.host_memory import BLOCK_BYTES, host_tensors, wait_for
from rlinf_async.core.spans import SpanLog
from rlinf_async.hosts.rlinf.shards import reshard
from rlinf_async.hosts.rlinf.wire import borrow, pack

Chunk = dict[str, torch.Tensor]
Types = Mapping[str, torch.dtype]


class WeightSender:
    """Copies the weights of one learner rank, and offers them to inference from a thread of its own.

    Every rank takes part in a copy, because shards are gathered for it; the weight sender alone keeps it.
    An error in the thread is raised by `sent`, and by the next `offer`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._snapshot = Snapshot(actor)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._sending: Future[None] | None = None

    def expect(self, types: Types) -> None:
        """The receivers' tensors by name, and their types: no others are sent, and these in no wider type."""
        self._snapshot.types = types

    async def offer(
        self, version: int, trajectories: Any, spans: SpanLog, *, copied: Callable[[], object] = lambda: None
    ) -> float:
        """Copy the present weights, to be sent as those of `version`; the seconds that it took.

        `copied` is called before anything is sent.
        """
        began = time.monotonic()
        await self.sent()  # the memory of one copy serves all: it must have left
        with spans.span("copy", version=version):
            chunks = self._snapshot.take()
        copied()
        if self._actor._is_weight_sender:
            self._sending = self._thread.submit(_send, trajectories, version, chunks, spans)
        return time.monotonic() - began

    async def sent(self) -> None:
        """Wait until what was offered last has left this process."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)


class Snapshot:
    """The weights of an RLinf actor in CPU memory, as they are when `take` is called.

    The first holds all weights, so that the receivers' frozen ones are the learner's, too; later ones what
    RLinf synchronises, parameters that are trained and buffers. One tensor at a time is gathered from its
    shards, so that no second copy of the model is made on the device. The memory of later ones is allocated
    once, page-locked beside an accelerator, and written again by each `take`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._memory: Chunk = {}
        self._complete = False
        self.types: Types = {}

    def take(self) -> list[Chunk]:
        """The weights in chunks of bounded size; nothing on ranks that do not send."""
        # What a forward pass without gradients has left gathered may be another version's.
        reshard(self._actor.model)
        state = self._actor.get_rollout_state_dict()
        chosen = {name: state[name] for name in self._names(state)}
        if not chosen:
            raise ValueError(f"none of the learner's {len(state)} tensors has a name that inference knows")
        memory = self._places(chosen) if self._actor._is_weight_sender else {}
        for name, shard in chosen.items():
            tensor = materialize_tensor(shard)  # every rank takes part
            if memory:
                place = memory[name]
                place.copy_(tensor.detach().to(place.dtype), non_blocking=True)  # converted on its own device
        wait_for(*chosen.values())
        self._complete = True
        self._memory = memory if memory.keys() == set(self._names(state)) else {}
        return _chunks(memory)

    def _names(self, state: Mapping[str, torch.Tensor]) -> list[str]:
        trained = set(self._actor.param_names_need_sync)
        return [
            name
            for name in state
            if "_extra_state" not in name
            and (not self._complete or name in trained)
            and (not self.types or name in self.types)
        ]

    def _places(self, chosen: Mapping[str, torch.Tensor]) -> Chunk:
        if self._memory.keys() == chosen.keys():
            return self._memory
        pinned = any(tensor.is_cuda for tensor in chosen.values())
        like = [(tensor.shape, self._type(name, tensor.dtype)) for name, tensor in chosen.items()]
        return dict(zip(chosen, host_tensors(like, pinned=pinned), strict=True))

    def _type(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """As RLinf's: the type that its bucket syncer is told to send, else the receiver's if narrower."""
        if not dtype.is_floating_point:
            return dtype
        asked = OmegaConf.select(self._actor.cfg, "weight_syncer.bucket.bucket_dtype")
        buckets = OmegaConf.select(self._actor.cfg, "weight_syncer.type") == "bucket"
        if buckets and asked is not None and name in self._actor.param_names_need_sync:
            return normalize_dtype(asked)
        wanted = self.types.get(name, dtype)
        return wanted if wanted.itemsize < dtype.itemsize else dtype


def apply(model: torch.nn.Module, chunks: Sequence[dict[str, Any]]) -> None:
    """Write a snapshot, packed, into `model`, as RLinf's bucket syncer does: types converted, in place."""
    for chunk in chunks:
        model.load_state_dict(borrow(chunk), strict=False)


def types_of(model: torch.nn.Module) -> dict[str, torch.dtype]:
    """The type of each tensor that `model` can be given."""
    return {n: tensor.dtype for n, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}


class WeightClient:
    """The inference side of publication, for one rank."""

    def __init__(self, channel: Any, *, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    async def next(self) -> tuple[int, list[dict[str, Any]]] | None:
        """The newest version and its chunks, packed: arrays in the object store's own memory."""
        offered = await self._channel.next_weights.remote(self._rank)
        if offered is None:
            return None
        version, references = offered
        return version, list(await asyncio.gather(*references))

    async def applied(self, version: int) -> None:
        await self._channel.weights_applied.remote(self._rank, version)


def _chunks(memory: Chunk) -> list[Chunk]:
    """Parts of `memory` of about a block each, for what travels whole: one object of the store."""
    chunks: list[Chunk] = [{}]
    held = 0
    for name, tensor in memory.items():
        if held and held + tensor.nbytes > BLOCK_BYTES:
            chunks.append({})
            held = 0
        chunks[-1][name] = tensor
        held += tensor.nbytes
    return [chunk for chunk in chunks if chunk]


def _send(trajectories: Any, version: int, chunks: Sequence[Chunk], spans: SpanLog) -> None:
    with spans.span("send", version=version):
        references = [ray.put(pack(chunk)) for chunk in chunks]
        # Not ray.get, which in the process of an asynchronous actor warns of blocking its event loop.
        trajectories.offer_weights.remote(version, references).future().result()
