"""Those who carry requests from shards to inference ranks: a broker, or a channel of processes."""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import PeerError
from rlinf_async.loops.request_broker import request_broker
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.request_server import RequestServer
from rlinf_async.wire.payloads import read_sealed
from rlinf_async.wire.shown_memory import Reader
from tests.making import request, run_settings


def dynamic(*, max_size=8, max_wait=0.0, deadline_s=60.0):
    """The settings of a run with level 2 on."""
    block = {
        "mode": "rollout",
        "advanced": {"deadline_s": deadline_s},
        "rollout": {"max_wait_ms": 1000 * max_wait},
    }
    return run_settings(asynchrony=AsyncConfig.from_mapping(block), max_batch_size=max_size)


class InProcess:
    """Shards and ranks that call the broker themselves."""

    def __init__(self, settings):
        self.broker = request_broker(settings)

    def client(self, *, generation=0, node=""):
        return Shards(self.broker, generation, node)

    def server(self, rank=0, *, generation=0, node=""):
        return SimpleNamespace(
            take=lambda: self.broker.take(rank, node, generation), answering=self.broker.answering
        )

    async def asked_again(self):
        return self.broker.again

    async def rank_lost(self, rank, generation):
        self.broker.rank_lost(rank, generation)

    async def shards_lost(self, shards, generation):
        self.broker.shards_lost(shards, generation)

    async def close(self):
        self.broker.close()


class Shards:
    """The shards of one env worker, in one of its lives; fills `PolicyPort`."""

    def __init__(self, broker, generation, node):
        self._broker, self._generation, self._node = broker, generation, node

    def rollout(self, shard):
        return self._broker.rollout(shard)

    async def act(self, asked):
        return await self._broker.act(replace(asked, generation=self._generation, node=self._node))


class Channel:
    """Ray's handle of a channel process, which takes its sides to be on other machines if `far`."""

    def __init__(self, settings=None, *, far=False):
        settings = settings or dynamic()
        self.worker = RequestChannel(settings)
        self._channels = {"elsewhere" if far else "": self}
        self.address = SimpleNamespace(remote=lambda node: self.worker.address(None if far else node))
        self.rank_lost, self.shards_lost = self.worker.rank_lost, self.worker.shards_lost
        self.close = self.worker.close_requests

    @property
    def broker(self):
        return self.worker._broker

    def client(self, *, node="", **fields):
        del node  # all of them are where the test is
        return RequestClient(self._channels, **fields)

    def server(self, rank=0, *, node="", **fields):
        del node
        return RequestServer(self._channels, rank=rank, **fields)

    async def asked_again(self):
        return (await self.worker.pop_batches())["again"]


def observation(number, side=2):
    return {"image": torch.full((side, side), number, dtype=torch.uint8)}


def ask(client, *shards, **fields):
    return [
        asyncio.create_task(client.act(request(shard, payload=observation(shard), **fields)))
        for shard in shards
    ]


async def read(payload):
    return payload if isinstance(payload, dict) else await read_sealed(payload, Reader())


async def act(batch):
    """A policy that tells each request the number that it has seen."""
    payloads = [await read(pending.request.payload) for pending in batch]
    return [
        payload if isinstance(payload, PeerError) else {"seen": payload["image"][0, 0].clone()}
        for payload in payloads
    ]


async def answer(server):
    """Serve one batch; returns its shards."""
    batch = await server.take()
    async with server.answering(batch) as answers:
        answers.extend(await act(batch))
    return [pending.shard for pending in batch]


async def seen(asker):
    return int((await asker)["seen"])


async def five_decisions(client, shard, rng: random.Random):
    """A rollout of five requests, whose times and sizes `rng` draws; each gets its own answer."""
    async with client.rollout(shard):
        for step in range(5):
            await asyncio.sleep(rng.choice([0.0, 0.125, 1.0, 5.0]))
            wanted = (7 * shard + step) % 256
            asked = request(shard, rng.randint(1, 3), observation(wanted))
            assert int((await client.act(asked))["seen"]) == wanted
