"""What an env worker does for every host, with the least that a host has to give."""

import asyncio
import inspect
import os
import pickle
import threading
from contextlib import nullcontext
from functools import partial
from multiprocessing import connection
from types import SimpleNamespace

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import StuckThread
from rlinf_async.core.types import Ticket
from rlinf_async.loops import env as env_loop
from rlinf_async.loops import simulator_thread
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.ray_runtime.processes import shard_worker as module
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker, concatenate_metrics, each
from rlinf_async.wire.shown_memory import RolloutMemory
from tests.hostile_errors import RAISED
from tests.making import plan, run_settings


class Closing:
    def __init__(self, closed):
        self.close = lambda: closed.append(threading.current_thread().name)


class Worker(ShardWorker):
    def __init__(self, *, rank=1, stages=2):
        self.start_shards(AsyncConfig(), rank=rank, stages=stages)
        self.closed = []
        self.built = {
            "train": [Closing(self.closed) for _ in range(stages)],
            "eval": [object(), Closing(self.closed)],
        }

    def environments(self, mode):
        return self.built[mode]


@pytest.fixture
def joined(tmp_path):
    """A worker whose faults are recorded in `tmp_path`."""
    worker = Worker()
    asyncio.run(worker.join_run("env worker 1", str(tmp_path)))
    return worker


def test_statistics_of_a_batch_are_in_the_order_of_the_shards_and_given_once():
    worker = Worker()
    worker._episodes[4][1]["0/1"] = [{"return": torch.tensor([3.0])}]
    worker._episodes[4][0]["0/0"] = [
        {"return": torch.tensor([1.0])},
        {"return": torch.tensor([2.0]), "won": torch.ones(1)},
    ]
    episodes, busy, _ = asyncio.run(worker.pop_metrics(4))
    assert episodes["return"].tolist() == [1.0, 2.0, 3.0]
    assert episodes["won"].tolist() == [1.0]
    assert len(busy) == 2
    assert asyncio.run(worker.pop_metrics(4))[0] == asyncio.run(worker.pop_metrics(5))[0] == {}


def test_shards_start_their_simulators_apart(monkeypatch):
    stock = inspect.unwrap(os.fork)
    monkeypatch.setattr(os, "fork", stock)
    monkeypatch.setattr(connection, "Pipe", inspect.unwrap(connection.Pipe))
    assert Worker().in_threads("train", int, in_processes=True) == [0, 1]
    assert os.fork is not stock
    assert len(os.fork.rlinf_async_forking.apart) == 2


def test_what_can_be_closed_is_closed_in_the_thread_of_its_shard():
    worker = Worker()
    asyncio.run(worker.close_envs())
    assert worker.closed == ["train-0_0", "train-1_0", "eval-1_0"]


def test_environments_are_built_in_the_threads_of_their_shards():
    worker = Worker()
    built = worker.in_threads(
        "train", lambda stage: (stage, threading.current_thread().name), in_processes=True
    )
    assert built == [(0, "train-0_0"), (1, "train-1_0")]


@pytest.mark.parametrize("raised", RAISED)
def test_environments_that_cannot_be_built_name_their_shard_whatever_they_raise(raised):
    def build(stage):
        return raised.fail() if stage % 2 else stage

    with pytest.raises(
        RuntimeError, match=rf"environments of shard 3 cannot be built: {raised.kind}"
    ) as failed:
        Worker().in_threads("train", build, in_processes=True)
    assert pickle.loads(pickle.dumps(failed.value)).args == failed.value.args


@pytest.mark.parametrize("raised", RAISED)
def test_closing_that_fails_at_the_end_is_put_down_and_the_others_are_closed(raised, joined, tmp_path):
    joined.built["train"][0].close = raised.fail
    asyncio.run(joined.close_envs())
    assert joined.closed == ["train-1_0", "eval-1_0"]
    (fault,) = read_faults(tmp_path)
    assert (fault.shard, fault.what, fault.action) == (2, "env failed", "they are left unclosed")
    assert fault.error.startswith(raised.kind)


def test_closing_that_hangs_is_left_at_the_end_of_a_run(joined, tmp_path, monkeypatch):
    monkeypatch.setattr(simulator_thread, "CLOSE_TIMEOUT_S", 0.05)
    held = threading.Event()
    joined.built["train"][1].close = held.wait
    asyncio.run(joined.close_envs())
    held.set()
    assert joined.closed == ["train-0_0", "eval-1_0"]
    (fault,) = read_faults(tmp_path)
    assert (fault.shard, fault.what) == (3, "simulator hangs")


@pytest.mark.parametrize("apart", [True, False])
def test_all_are_started_at_once_only_where_simulators_are_apart(apart):
    worker = Worker()
    first, second = worker._threads["train"]
    started = threading.Event()
    waits = partial(started.wait, 5.0 if apart else 0.01)
    starts = [
        lambda: partial(first.submit(waits).result),
        lambda: partial(second.submit(started.set).result),
    ]
    found = each(starts, in_processes=apart)
    assert found == [apart, None]


def test_statistics_that_not_every_rollout_has_are_joined_by_name():
    joined = concatenate_metrics([{"a": torch.ones(2, 1)}, {"a": torch.zeros(1), "b": torch.ones(1)}])
    assert {name: value.tolist() for name, value in joined.items()} == {"a": [1.0, 1.0, 0.0], "b": [1.0]}


class Gone(BaseException):
    """In the place of `os._exit`."""


def end_stuck(worker, monkeypatch, **survive):
    def gone(status):
        raise Gone(status)

    monkeypatch.setattr("os._exit", gone)
    asynchrony = AsyncConfig.from_mapping({"mode": "full", "survive": survive})
    with worker._ending_if_stuck(run_settings(asynchrony=asynchrony)):
        raise StuckThread("shard 3 has not answered for 120 s; it stands in hang_here\nin hang_here")


@pytest.mark.parametrize(
    ("restarts", "raised", "action"),
    [(5, Gone, "the env worker ends itself"), (0, StuckThread, "the run ends")],
)
def test_a_worker_whose_simulators_hang_ends_itself_if_another_takes_its_place(
    restarts, raised, action, joined, monkeypatch, tmp_path
):
    with pytest.raises(raised):
        end_stuck(joined, monkeypatch, process_restarts=restarts)
    (fault,) = read_faults(tmp_path)
    assert (fault.process, fault.what, fault.action) == ("env worker 1", "simulator hangs", action)
    assert (fault.error.startswith("shard 3"), fault.trace) == (True, "in hang_here")


def test_simulators_that_hang_are_ended_by_the_environments_that_can():
    class Ending(Closing):
        def abort(self, reason):
            return bool(reason)

    worker = Worker()
    assert not worker.simulators("train", 1)._abort("no answer")
    worker.built["train"][1] = Ending(worker.closed)
    assert worker.simulators("train", 1)._abort("no answer")


def test_statistics_of_batches_that_wait_are_known_to_a_successor_and_given_once_there():
    worker, successor = Worker(), Worker()
    for batch in (3, 4, 5):
        worker._episodes[batch][1]["0/3"] = [{"return": torch.tensor([float(batch)])}]
    found = asyncio.run(worker.read_episodes(range(4, 6)))
    asyncio.run(successor.resume_episodes([{}, found], frozenset({(4, "0/3"), (5, "0/3")})))
    asyncio.run(Worker(rank=0).resume_episodes([], frozenset()))  # a checkpoint without any
    assert asyncio.run(successor.pop_metrics(3))[0] == {}
    for batch in (4, 5):
        for one in (worker, successor):
            assert asyncio.run(one.pop_metrics(batch))[0]["return"].tolist() == [float(batch)]


def test_of_a_rollout_that_is_collected_again_the_statistics_of_the_checkpoint_do_not_count():
    worker, successor = Worker(), Worker()
    for place in (2, 3):
        worker._episodes[4][1][f"0/{place}"] = [{"return": torch.tensor([float(place)])}]
    found = asyncio.run(worker.read_episodes(range(4, 6)))
    asyncio.run(successor.resume_episodes([{}, found], frozenset({(4, "0/2"), (5, "0/3")})))
    assert asyncio.run(successor.pop_metrics(4))[0]["return"].tolist() == [2.0]


def test_of_a_rollout_that_was_refused_only_the_one_that_was_collected_again_is_counted():
    worker = Recording()
    ticket = Ticket(shard=1, batch=4, epoch=0, place=1, version=3)
    build = worker._recorder(None, 1)
    for value in (1.0, 2.0):
        build(ticket).append({"return": torch.tensor([value])})
    assert asyncio.run(worker.pop_metrics(4))[0]["return"].tolist() == [2.0]


class Recording(Worker):
    """Of which a recorder is the list that it adds its episodes to."""

    def recorder(self, settings, stage, ticket, episodes):
        return episodes


class Evaluating(Worker):
    """Its evaluation shards ask once each; it notes under which numbers."""

    eval_rollouts = 1

    def __init__(self, *, rank):
        super().__init__(rank=rank)
        self.asked = []

    def _policy(self, requests):
        async def act(request):
            self.asked.append((request.shard, request.mode))

        return SimpleNamespace(rollout=lambda shard: nullcontext(self.asked.append(shard)), act=act)

    def eval_shard(self, stage):
        async def give(*_):
            return None

        shown = {"waiting": lambda output: 1, "observation": lambda output: output}
        return SimpleNamespace(**shown, horizon=1, episodes=[], start=give, step=give, finish=give)


def test_evaluation_shards_ask_under_numbers_that_no_training_shard_has():
    of = plan(total_envs=8, env_workers=2, shards_per_worker=2)
    settings, asked = run_settings(plan=of, global_batch_size=8, max_batch_size=4), []
    for rank in (0, 1):
        worker = Evaluating(rank=rank)
        asyncio.run(worker.evaluate_shards(settings, object()))
        asked += worker.asked
    numbers = [shard for one in asked for shard in (one if isinstance(one, tuple) else (one,))]
    assert sorted(shard for shard in numbers if isinstance(shard, int)) == [4, 4, 5, 5, 6, 6, 7, 7]
    assert not set(range(of.shards)) & set(numbers)


def test_environments_that_hang_while_they_are_built_are_named_with_where_they_stand():
    worker, held = Worker(), threading.Event()
    worker.asynchrony = AsyncConfig.from_mapping({"advanced": {"start_s": 0.05}})
    with pytest.raises(StuckThread, match=r"shard 2 have not answered for 0.05 s \(async.advanced.start_s\)"):
        worker.in_threads("train", lambda _: held.wait(), in_processes=False)
    held.set()


def test_an_env_loop_is_of_the_shards_own_environments(monkeypatch):
    seen = {}

    async def run_shard(**arguments):
        seen.update(arguments)

    monkeypatch.setattr(env_loop, "run_shard", run_shard)
    worker = Worker(rank=0)
    memories = []
    shards = {1: SimpleNamespace(stand_at=lambda *_: None, horizon=5, keep_in=memories.append)}
    worker.train_shard = shards.__getitem__
    settings = run_settings(asynchrony=AsyncConfig.from_mapping({"mode": "full"}))
    asyncio.run(worker._collecting(settings, 1, shard=3, policy="its policy", trajectories="its buffer"))
    assert (seen["shard"], seen["policy"], seen["trajectories"]) == (3, "its policy", "its buffer")
    assert (seen["overlaps"], seen["spans"]) == (True, worker.spans)
    assert seen["env"] is shards[1]
    assert [type(memory) for memory in memories] == [RolloutMemory]
    recorded = []
    worker.recorder = lambda *arguments: recorded.append(arguments)
    ticket = Ticket(shard=3, batch=4, epoch=0, place=3, version=2)
    seen["recorder"](ticket)
    assert recorded == [(settings, 1, ticket, [])]
    assert worker._episodes[4][1]


def test_a_run_with_fewer_shards_closes_all_environments_and_builds_those_of_its_own(monkeypatch):
    class Dividing(Worker):
        def build_anew(self, settings):
            names = self.in_threads("train", lambda stage: threading.current_thread().name, in_processes=True)
            self.built = {"train": names, "eval": []}

        def _collecting(self, settings, stage, *, shard, **options):
            async def collect():
                self.collected.append((stage, shard))

            return collect()

    monkeypatch.setattr(module, "TrajectoryClient", lambda *_, **__: None)
    monkeypatch.setattr(module, "RequestClient", lambda *_, **__: None)
    worker = Dividing(rank=1, stages=2)
    worker.collected, old = [], worker.built
    four = run_settings(plan=plan(total_envs=8, env_workers=2, shards_per_worker=4))
    asyncio.run(worker.run_shards(four, None, None))
    assert sorted(worker.closed) == ["eval-1_0", "train-0_0", "train-1_0"]
    assert worker.built is not old
    assert worker.built["train"] == [f"train-{stage}_0" for stage in range(4)]
    assert worker.collected == [(stage, 4 + stage) for stage in range(4)]
    worker.closed.clear()
    asyncio.run(worker.run_shards(four, None, None))
    assert worker.closed == []


def test_an_evaluation_waits_until_the_environments_of_other_shards_are_built(monkeypatch):
    monkeypatch.setattr(module, "TrajectoryClient", lambda *_, **__: None)
    monkeypatch.setattr(module, "RequestClient", lambda *_, **__: None)
    seen, begun, may_end = [], threading.Event(), threading.Event()

    class Slow(Worker):
        def build_anew(self, settings):
            begun.set()
            assert may_end.wait(60)
            seen.append("built")

        def _collecting(self, settings, stage, **options):
            return asyncio.sleep(0)

        def eval_shard(self, stage):
            seen.append(f"evaluates {stage}")
            raise ZeroDivisionError

    async def both():
        worker = Slow(rank=0, stages=2)
        four = run_settings(plan=plan(total_envs=4, shards_per_worker=4))
        collecting = asyncio.create_task(worker.run_shards(four, None, None))
        await asyncio.to_thread(begun.wait, 60)
        evaluating = asyncio.create_task(worker.evaluate_shards(four, None))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen == []
        may_end.set()
        await collecting
        with pytest.raises(ZeroDivisionError):
            await evaluating

    asyncio.run(both())
    assert seen == ["built", "evaluates 0"]
