"""An inference rank: a copy of the policy that answers batches of requests."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import torch

from rlinf_async.core.tensors import Tree, concatenate
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.hosts.local.device import DeviceQueue, Watch, unwatched
from rlinf_async.hosts.local.policy import ActorCritic
from rlinf_async.loops.request_broker import Pending, RequestBroker

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Answer:
    """What the policy says to the environments of one request, [B, ...] each."""

    actions: torch.Tensor
    logprobs: torch.Tensor
    values: torch.Tensor
    version: int


class InferenceRank:
    """Fills `loops.ports.Policy`.

    Forward passes and changes of weights run on the rank's one thread, one after the other: an answer
    is made by the weights of exactly the version that it carries.
    """

    def __init__(self, rank: int, *, model: ActorCritic, busy: BusyMeter, watch: Watch = unwatched) -> None:
        self._rank = rank
        self._busy = busy
        self._model = copy.deepcopy(model)
        # Environments stand still while they wait for an answer; a learner has more to do anyway.
        self._queue = DeviceQueue(self._model, "inference", urgent=True, watch=watch)
        self._version = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"inference-{rank}")

    async def act(self, batch: Sequence[Pending]) -> list[Answer]:
        """One answer per request, in order."""
        payloads = [pending.request.payload for pending in batch]
        with self._busy.busy(self._rank):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._forward, payloads)

    async def load(self, state: State, version: int) -> None:
        """Act with `state` from the next forward pass on."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load, state, version)

    def close(self) -> None:
        """Wait for the forward pass that may still be running."""
        self._thread.shutdown()

    def _load(self, state: State, version: int) -> None:
        with self._queue.block():
            self._model.load_state_dict(state)
        self._version = version

    @torch.no_grad()
    def _forward(self, payloads: Sequence[Tree]) -> list[Answer]:
        with self._queue.block():
            merged: dict[str, Any] = self._queue.put(concatenate(payloads))
            with self._queue.watched():
                outputs = self._model.act(merged["states"], merged["noise"])
            outputs = [output.cpu() for output in outputs]
        sizes = [len(payload["noise"]) for payload in payloads]  # type: ignore[arg-type]
        parts = zip(*(torch.split(output, sizes) for output in outputs), strict=True)
        return [Answer(actions, logprobs, values, self._version) for actions, logprobs, values in parts]


class RankRequests:
    """The inference side of the request broker, for one rank; fills `loops.ports.RequestPort`."""

    def __init__(self, broker: RequestBroker, rank: int) -> None:
        self._broker = broker
        self._rank = rank

    async def take(self) -> list[Pending] | None:
        return await self._broker.take(self._rank)

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        return self._broker.answering(batch)
