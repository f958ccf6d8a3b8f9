"""New weights from a learner to inference ranks, on its own machine and on others, without Ray."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.publication import weight_file, weight_mirror
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights, WeightsGone
from rlinf_async.ray_runtime.publication.weight_mirror import WeightMirror
from rlinf_async.ray_runtime.publication.weights import (
    WeightClient,
    WeightSender,
    apply,
    types_of,
)
from rlinf_async.wire import connection, memory
from tests.making import plan, run_settings
from tests.ray_runtime.publication.copies import Copy

pytestmark = pytest.mark.real_time

RANKS = 3


class Model(torch.nn.Module):
    """A frozen layer, a trained one that is tied to another, and a buffer that a forward pass may change."""

    def __init__(self, seed, dtype=torch.bfloat16):
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = torch.nn.Linear(50, 70).requires_grad_(False)
        self.trained = torch.nn.Linear(70, 70)
        self.tied = torch.nn.Linear(70, 70)
        self.tied.weight = self.trained.weight
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.to(dtype)


class Handle:
    """A coordinator in this process, called as if it were another."""

    def __init__(self, coordinator):
        self._coordinator = coordinator

    def __getattr__(self, name):
        method = getattr(self._coordinator, name)
        return SimpleNamespace(remote=lambda *arguments: asyncio.ensure_future(method(*arguments)))


class FromThread(Handle):
    """The same for the thread that sends, whose calls are done by the loop of the test."""

    def __init__(self, coordinator):
        super().__init__(coordinator)
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name):
        method = getattr(self._coordinator, name)

        def remote(*arguments):
            sent = asyncio.run_coroutine_threadsafe(method(*arguments), self._loop)
            return SimpleNamespace(future=lambda: sent)

        return SimpleNamespace(remote=remote)


class Rank:
    def __init__(self, run, number, generation=0):
        self.model, self.number = Model(100 + number, run.dtype), number
        self.client = WeightClient(Handle(run.coordinator), rank=number, generation=generation)

    async def load(self):
        version, parts = await self.client.next()
        for part in parts:
            with part as tensors:
                apply(self.model, tensors)
        await self.client.applied(version)
        return version


class Run:
    """A learner and its inference ranks."""

    def __init__(self, *, dtype=torch.bfloat16):
        self.dtype, self.generations = dtype, [0] * RANKS
        self.coordinator = Coordinator(run_settings(plan=plan(inference_ranks=RANKS)), 0)
        self.model, self.draw = Model(0, torch.float32), np.random.default_rng(0)
        trained = self.model.state_dict().keys() - {"frozen.weight", "frozen.bias"}
        self.sender = WeightSender(Copy(self.model, trained))
        self.sender.expect(types_of(Model(0, dtype)), keeps=True)
        self.ranks = [Rank(self, number) for number in range(RANKS)]
        self.copies = {}

    def train(self, share):
        """Change a share of the numbers, each of them so much that it is another in any type."""
        with torch.no_grad():
            for each in (self.model.trained.weight, self.model.trained.bias, self.model.tied.bias):
                chosen = torch.from_numpy(self.draw.random(each.shape) < share)
                each[chosen] += torch.from_numpy(self.draw.normal(size=each.shape)).float()[chosen]
        self.model.seen += 1

    async def offer(self, version):
        await self.sender.offer(version, FromThread(self.coordinator), SpanLog(None))
        await self.sender.sent()
        cast = Model(0, self.dtype)
        cast.load_state_dict(self.model.state_dict())
        self.copies[version] = {name: bits(each) for name, each in cast.state_dict().items()}

    async def restart(self, number):
        self.generations[number] += 1
        await self.coordinator.rank_lost(number, self.generations[number])
        self.ranks[number] = Rank(self, number, self.generations[number])

    def check(self, number, version):
        for name, each in self.ranks[number].model.state_dict().items():
            assert bits(each) == self.copies[version][name], name


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def travelled(monkeypatch):
    """Ranks are on one machine, the learner on another. The bytes of weights that were sent."""

    def machine():
        return "the learner's" if threading.current_thread().name.startswith("weights") else "the ranks'"

    for module in (memory, weight_file):
        monkeypatch.setattr(module, "machine", machine)
    monkeypatch.setattr(connection, "has_other_nodes", lambda: True)
    monkeypatch.setattr(weight_mirror, "PART_BYTES", 4096)
    sent, find = [], weight_mirror.WeightServer._find

    def finding(*arguments):
        part = find(*arguments)
        sent.append(len(part.content))
        return part

    monkeypatch.setattr(weight_mirror.WeightServer, "_find", finding)
    return sent


async def some_steps(run, draw, steps):
    """Versions that ranks load, leave out, or lose as they die."""
    for version in range(steps):
        await run.offer(version)
        for number in range(RANKS):
            if version and draw.random() < 0.2:
                await run.restart(number)
            elif version and draw.random() < 0.3:
                continue
            assert await run.ranks[number].load() == version
            run.check(number, version)
        run.train(draw.choice([0.0, 0.02, 0.9]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_of_the_learners_machine_hold_what_it_has_whatever_was_left_out_or_started_again(seed, dtype):
    asyncio.run(steps_of(seed, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_of_another_machine_hold_what_it_has_whatever_was_left_out_or_started_again(
    travelled, seed, dtype
):
    asyncio.run(steps_of(seed, dtype))
    assert travelled


async def steps_of(seed, dtype):
    await some_steps(Run(dtype=dtype), np.random.default_rng(seed), 12)


async def all_load(run, version):
    assert await asyncio.gather(*(rank.load() for rank in run.ranks)) == [version] * RANKS
    for number in range(RANKS):
        run.check(number, version)


async def test_a_version_travels_to_a_machine_once_and_of_later_ones_what_has_changed(travelled):
    run = Run()
    await run.offer(0)
    await all_load(run, 0)
    whole = sum(travelled)
    size = sum(len(each) for each in run.copies[0].values())
    assert size - len(run.copies[0]["tied.weight"]) < whole < size + 4096
    for version in (1, 2, 3):
        travelled.clear()
        run.train(0.02)
        await run.offer(version)
        await all_load(run, version)
        assert sum(travelled) < 0.2 * whole


async def test_who_mirrors_for_a_node_may_die_and_the_others_fetch_for_themselves(travelled):
    run = Run()
    await run.offer(0)
    await all_load(run, 0)
    ((first, _),) = run.coordinator._mirrors.values()
    others = [rank for rank in run.ranks if rank.number != first]
    await end(peers_of(others), run.ranks[first].client._mirror._listener)
    run.train(0.5)
    await run.offer(1)
    assert await asyncio.gather(*(rank.load() for rank in others)) == [1, 1]
    for rank in others:
        run.check(rank.number, 1)
    await run.restart(first)
    assert run.coordinator._mirrors == {}
    assert await run.ranks[first].load() == 1
    run.check(first, 1)


def peers_of(ranks):
    return [peer for rank in ranks for peer in rank.client._mirror.servers.by_address.values()]


async def end(peers, listener):
    """As when the process dies that listens: connections end, and no more are taken."""
    for peer in peers:
        peer._connection.abort()
    for taking in listener._sockets.values():
        asyncio.get_running_loop().remove_reader(taking)
        taking.close()
    await asyncio.sleep(0)


async def test_a_part_that_comes_damaged_is_asked_for_again_whole(travelled, monkeypatch):
    find, damaged, asked = weight_mirror.WeightServer._find, [], []

    def damaging(server, place, before, index):
        part = find(server, place, before, index)
        asked.append((index, "whole" if before is None else "changes"))
        if before is not None and len(damaged) < 2:
            damaged.append(index)
            return part._replace(checksum=part.checksum ^ 1)
        return part

    run = Run()
    await run.offer(0)
    await all_load(run, 0)
    monkeypatch.setattr(weight_mirror.WeightServer, "_find", damaging)
    run.train(0.02)
    await run.offer(1)
    await all_load(run, 1)
    assert damaged == [0, 1]
    for index in damaged:
        assert asked.count((index, "changes")) == asked.count((index, "whole")) == 1


async def test_what_stays_damaged_is_an_error_and_no_rank_acts_by_it(travelled, monkeypatch):
    find = weight_mirror.WeightServer._find
    monkeypatch.setattr(
        weight_mirror.WeightServer,
        "_find",
        lambda *asked: (part := find(*asked))._replace(checksum=part.checksum ^ 1),
    )
    run = Run()
    before = {name: bits(each) for name, each in run.ranks[0].model.state_dict().items()}
    await run.offer(0)
    with pytest.raises(PeerError, match="part 0 of version 0 of the weights came damaged"):
        await run.ranks[0].load()
    assert {name: bits(each) for name, each in run.ranks[0].model.state_dict().items()} == before


async def test_a_rank_whose_version_is_written_over_while_it_waits_takes_the_newest(travelled):
    run, mirror = Run(), WeightMirror()
    for version in range(4):
        await run.offer(version)
        run.train(0.02)
    asked, give = [], run.coordinator.next_weights

    async def late(*rank):
        """The first answer is of a version that is not there any more."""
        version, places, nearby = await give(*rank)
        asked.append(version)
        if len(asked) == 1:
            return 2, old, nearby
        return version, places, nearby

    old = (await give(0, 0, "", mirror.address))[1]
    await run.offer(4)
    await run.offer(5)
    run.coordinator.next_weights = late
    assert await run.ranks[0].load() == 5
    run.check(0, 5)
    assert asked == [5, 5]


async def test_a_rank_of_the_learners_machine_whose_version_was_closed_takes_the_newest():
    """As when one rank still reads the memory that the next version should be written to."""
    run = Run()
    await run.offer(0)
    slow, late = run.ranks[:2]
    _, parts = await slow.client.next()
    give = run.coordinator.next_weights
    old = await give(1, 0, "", late.client._mirror.address)
    for version in (1, 2):
        run.train(0.02)
        await run.offer(version)
    with pytest.raises(PeerError) as closed:
        OpenedWeights(old[1][1])
    assert not isinstance(closed.value, WeightsGone)
    answers = [old]

    async def once(*rank):
        return answers.pop() if answers else await give(*rank)

    run.coordinator.next_weights = once
    assert await late.load() == 2
    run.check(1, 2)
    for part in parts:
        with part as tensors:
            apply(slow.model, tensors)
    run.check(0, 0)


async def test_a_mirror_does_not_go_back_for_who_asks_for_an_older_version(travelled):
    run, mirror = Run(), WeightMirror()
    places = []
    for version in range(2):
        await run.offer(version)
        offered = await run.coordinator.next_weights(version, 0, "", mirror.address)
        places.append(offered[1][-1])
    await mirror.hold(places[1])
    with pytest.raises(WeightsGone):
        await mirror.hold(places[0])
    OpenedWeights(await mirror.hold(places[1])).close()


async def test_a_fetch_that_fails_leaves_the_version_before_to_who_asks_for_it(travelled, monkeypatch):
    run, mirror = Run(), WeightMirror()
    await run.offer(0)
    first = (await run.coordinator.next_weights(0, 0, "", mirror.address))[1][-1]
    with OpenedWeights(await mirror.hold(first)) as tensors:
        before = {name: bits(each) for name, each in tensors.items()}
    run.train(0.5)
    await run.offer(1)
    second = (await run.coordinator.next_weights(1, 0, "", mirror.address))[1][-1]
    monkeypatch.setattr(weight_mirror, "unpack_part", lambda *_: False)
    with pytest.raises(PeerError, match="came damaged"):
        await mirror.hold(second)
    held = await mirror.hold(first)
    assert held.version == 0
    with OpenedWeights(held) as tensors:
        assert {name: bits(each) for name, each in tensors.items()} == before


async def test_a_learner_that_has_died_is_an_error_that_comes_at_once(travelled):
    run = Run()
    await run.offer(0)
    await all_load(run, 0)
    await run.offer(1)
    await end(peers_of(run.ranks), run.sender._server._listener)
    for rank in run.ranks:
        with pytest.raises(PeerError, match=r"has ended the connection|cannot be reached"):
            await rank.load()


async def test_it_is_not_waited_for_for_ever(travelled, monkeypatch):
    monkeypatch.setattr(weight_mirror, "PART_TIMEOUT_S", 0.0)
    run = Run()
    await run.offer(0)
    with pytest.raises(PeerError, match="the weight server has not answered within 0 s"):
        await run.ranks[0].load()
