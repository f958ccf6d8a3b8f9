"""What an inference rank does for every host, with the least that a host has to give."""

import asyncio
import random
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from rlinf_async.core.failures import PeerError, PolicyFailure
from rlinf_async.loops.requests import Pending
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.publication.weights import types_of
from rlinf_async.wire.memory import MemoryFile, Pickled
from rlinf_async.wire.payloads import pack, seal
from tests.making import request


class Adding(InferenceWorker):
    """Answers with what it was asked with, and its one weight added."""

    def __init__(self, deadline_s=60.0):
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.version, self.asked, self.used = 0, [], []
        self.start_inference(rank=3, deadline_s=deadline_s, initializer=self.used.append, initargs=("begun",))

    def policy_module(self):
        return self.module

    def answer(self, payloads, sizes, mode):
        self.asked.append((sizes, mode))
        self.used.append(threading.current_thread().name)
        added = self.module.weight.detach()[0]
        return [{"version": self.version, "sum": payload["seen"] + added} for payload in payloads]

    def weights_changed(self, version):
        self.version = version
        self.used.append(threading.current_thread().name)


@pytest.fixture
def worker():
    return Adding()


def asked(shard, size, *, mode="train"):
    seen = torch.full((size,), float(shard))
    return Pending(request=request(shard, size, payload=seal({"seen": seen}), mode=mode))


def weights(value):
    return [nullcontext({"weight": torch.tensor([[value]])})]


def test_each_shard_has_its_own_answer_and_training_and_evaluation_are_apart(worker):
    modes = ["eval", "train", "eval", "train"]
    batch = [asked(shard, 1 + shard, mode=mode) for shard, mode in enumerate(modes)]
    asyncio.run(worker.load(7, weights(0.5)))
    answers = asyncio.run(worker.act(batch))
    for shard, answer in enumerate(answers):
        assert torch.equal(answer["sum"], torch.full((1 + shard,), shard + 0.5))
        assert answer["version"] == 7
    assert worker.asked == [([2, 4], "train"), ([1, 3], "eval")]


def test_the_thread_is_set_up_once_and_does_all_work_on_the_policy(worker):
    asyncio.run(worker.act([asked(0, 1)]))
    asyncio.run(worker.load(1, weights(1.0)))
    asyncio.run(worker.between_passes(lambda name: worker.used.append(name), "alone"))
    assert worker.used == ["begun", "inference_0", "inference_0", "alone"]


@pytest.mark.real_time
async def test_weights_do_not_change_while_a_batch_is_answered(worker):
    begun, go_on, order = asyncio.Event(), threading.Event(), []
    known, loop = worker.answer, asyncio.get_running_loop()

    def slow(*arguments):
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10.0)
        order.append("acted")
        return known(*arguments)

    worker.answer = slow
    acting = asyncio.create_task(worker.act([asked(0, 1)]))
    await begun.wait()
    loading = asyncio.create_task(worker.load(5, weights(2.0)))
    loading.add_done_callback(lambda _: order.append("loaded"))
    await asyncio.sleep(0)
    go_on.set()
    (answer,) = await acting
    await loading
    assert (order, answer["version"], worker.version) == (["acted", "loaded"], 0, 5)


def test_a_rank_says_what_weights_it_takes_and_how_busy_it_has_been(worker):
    assert asyncio.run(worker.weight_types()) == types_of(worker.module) == {"weight": torch.float32}
    asyncio.run(worker.act([asked(0, 1)]))
    (busy,) = asyncio.run(worker.pop_busy())
    assert 0 < busy <= 1


def test_a_request_that_cannot_be_read_is_left_out_and_the_others_are_answered(worker):
    memory = MemoryFile()
    gone = memory.write(Pickled(pack({"seen": torch.zeros(1)})))
    memory.close()
    lost = Pending(request=request(1, 1, payload=[gone, ("\0rlinf-async-nobody", b"")]))
    first, second, third = asyncio.run(worker.act([asked(0, 1), lost, asked(2, 1)]))
    assert isinstance(second, PeerError)
    for answer, seen in ((first, 0.0), (third, 2.0)):
        assert torch.equal(answer["sum"], seen + worker.module.weight.detach()[0])


def test_the_requests_of_a_batch_are_read_side_by_side(worker):
    """Between nodes each is a trip, and a node that is gone is waited for."""

    class Reading:
        now = most = 0

        async def read(self, *_):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return pack({"seen": torch.zeros(1)})

    worker._reader = Reading()
    place = ["another machine", 0, [(0, 0)], b"", []]
    far = [Pending(request=request(number, 1, payload=[place, ()])) for number in range(3)]
    assert len(asyncio.run(worker.act(far))) == 3
    assert worker._reader.most == 3


def drawn(worker, *versions):
    """What is drawn after the weights of each of `versions` were loaded."""
    found = []
    for version in versions:
        asyncio.run(worker.load(version, weights(0.0)))
        found.append((torch.rand(1).item(), np.random.rand(), random.random()))
    return found


def test_where_a_seed_of_sampling_is_given_a_version_samples_the_same_whatever_came_before(worker):
    worker.sampling_seed = 7
    one = drawn(worker, 1, 2, 400)
    torch.rand(5)
    assert drawn(worker, 400, 2) == [one[2], one[1]]
    assert len(set(one)) == 3


def test_elsewhere_sampling_goes_on_when_weights_change(worker):
    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    assert [torch_part for torch_part, *_ in drawn(worker, 1, 1)] == expected


def test_a_forward_pass_that_hangs_is_named_before_those_give_up_that_wait_for_it(monkeypatch):
    held, worker = threading.Event(), Adding(deadline_s=0.1)
    monkeypatch.setattr(Adding, "answer", lambda *_: held.wait())
    with pytest.raises(
        PolicyFailure, match=r"not answered on inference rank 3 for 0.09 s .* its thread is in"
    ):
        asyncio.run(worker.act([asked(0, 1)]))
    held.set()
