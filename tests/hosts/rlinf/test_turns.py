"""Who is on the accelerators when, while learner, inference and simulators take turns on them."""

import asyncio
import threading
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.turns import Turns
from tests.hosts.rlinf.workers import SHARDS, Walks, config, in_one_process, rollout_worker, with_walks


class Fleet:
    """Writes down what was asked of whom."""

    def __init__(self):
        self.said = []

    def call(self, name, method):
        return [f"{name}.{method}"]

    def wait(self, references, _):
        self.said += references


def turns(*, batches=3):
    fleet = Fleet()
    remote = SimpleNamespace(remote=lambda version: f"collected {version}")
    return Turns(fleet, SimpleNamespace(collected=remote), batches=batches), fleet.said


def test_the_others_leave_when_the_batch_is_collected_and_only_once_for_a_batch():
    keeper, said = turns()
    keeper.give_to_learner(0)
    keeper.give_to_learner(0)
    assert said == ["collected 1", "rollout.leave", "env.leave"]
    keeper.give_to_learner(1)
    assert said[3:] == ["collected 2", "rollout.leave", "env.leave"]


def test_after_the_last_batch_nothing_is_waited_for():
    keeper, said = turns(batches=2)
    keeper.give_to_learner(2)
    assert said == ["rollout.leave", "env.leave"]


class Movable(Walks):
    """Simulators that say in which thread they have left."""

    left: ClassVar[list[str]] = []

    def offload(self):
        self.left.append(threading.current_thread().name)


@pytest.mark.parametrize("offloads", [True, False])
def test_simulators_leave_in_the_threads_that_made_them_if_the_config_says_so(offloads):
    cfg = config(f"rollout.pipeline_stage_num={SHARDS}", f"env.train.enable_offload={offloads}")
    with in_one_process(), mock.patch("tests.hosts.rlinf.workers.Walks", Movable):
        worker = with_walks(ShardedEnvWorker(cfg))
        Movable.left.clear()
        asyncio.run(worker.leave())
    threads = [f"train-{stage}_0" for stage in range(SHARDS)]
    assert sorted(Movable.left) == (threads if offloads else [])


@pytest.mark.parametrize("offloads", [True, False])
def test_inference_leaves_when_asked_and_new_weights_bring_it_back(offloads):
    with in_one_process():
        worker = rollout_worker(config(f"rollout.enable_offload={offloads}"))
        moved = []
        worker.hf_model.to = moved.append
        asyncio.run(worker.leave())
        assert moved == (["cpu"] if offloads else [])
        asyncio.run(worker.load(1, []))
        assert moved == (["cpu", worker.device] if offloads else [])
