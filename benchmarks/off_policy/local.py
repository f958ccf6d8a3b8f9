"""RLinf's own asynchronous workers in one process, without Ray, and their runner.

Env workers, the rollout worker and the learner are RLinf's classes, made by their own constructors; each has
an event loop in a thread. Not RLinf's are: channels (queues of this process), names and numbers of workers,
and the copying of weights. The runner's loop is written anew, as RLinf's waits for Ray's calls.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import rlinf.scheduler
import torch
from omegaconf import DictConfig
from rlinf.scheduler import AcceleratorType, Worker, WorkerAddress
from rlinf.scheduler.channel.channel import DEFAULT_KEY
from rlinf.scheduler.worker import routing
from rlinf.workers.actor import fsdp_actor_worker
from rlinf.workers.env import env_worker
from rlinf.workers.rollout.hf import huggingface_worker

from benchmarks.off_policy.turns import TurnChannel, TurningEnvWorker, TurningLearner, TurningRolloutWorker
from benchmarks.off_policy.workload import note

GROUPS = {"env": TurningEnvWorker, "rollout": TurningRolloutWorker, "actor": TurningLearner}
STOP_S = 60.0
WRAPPED = "_fsdp_wrapped_module."
SWITCH_S = 0.001
"""The interpreter's switch interval: RLinf's workers are processes, so that here no thread may wait long for
another."""


class LocalChannel:
    """The interface of RLinf's channel, within a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[Any, deque[Any]] = defaultdict(deque)
        self._waiting: dict[Any, deque[Future[Any]]] = defaultdict(deque)

    def put(self, item: Any, weight: int = 0, key: Any = DEFAULT_KEY, async_op: bool = False) -> LocalWork:
        with self._lock:
            taker = self._waiting[key].popleft() if self._waiting[key] else None
            if taker is None:
                self._items[key].append(item)
        if taker is not None:
            taker.set_result(item)
        done: Future[Any] = Future()
        done.set_result(None)
        return LocalWork(done)

    def get(self, key: Any = DEFAULT_KEY, async_op: bool = False) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            if self._items[key]:
                future.set_result(self._items[key].popleft())
            else:
                self._waiting[key].append(future)
        return LocalWork(future) if async_op else future.result()


class LocalWork:
    """The interface of what RLinf's channels return."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> Any:
        return self._future.result()

    async def async_wait(self) -> Any:
        return await asyncio.wrap_future(self._future)


class Member:
    """A worker of RLinf's with an event loop in a thread."""

    def __init__(self, group: str, rank: int, size: int, cfg: DictConfig) -> None:
        worker_class: Any = GROUPS[group]
        self.worker = worker_class.__new__(worker_class)
        self.worker.__dict__ |= {
            "_rank": rank,
            "_world_size": size,
            "_worker_address": WorkerAddress(cfg[group].group_name, rank),
            "_group_name": cfg[group].group_name,
            "_worker_info": None,
            "_timer_metrics": {},
            "_accelerator_type": AcceleratorType.NO_ACCEL,
            "_manager_proxy": None,
            "broadcast": lambda *_, **__: None,
        }
        self.worker.__init__(cfg)
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(8))
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)


class LocalRun:
    """All workers of a run, and the turns that they play."""

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg
        self._sizes = {"env": cfg.env.train.total_num_envs, "rollout": 1, "actor": 1}
        self._without_ray()
        self._members = {
            name: [Member(name, rank, size, cfg) for rank in range(size)]
            for name, size in self._sizes.items()
        }
        for member in self._all():
            member.worker.init_worker()
        self._channels = [LocalChannel() for _ in range(3)]

    def turn(self, number: int, mode: str, frames: str) -> None:
        """Run a turn to its end, some seconds after the learner's first step."""
        (rollout,), (learner,), envs = (self._members[name] for name in ("rollout", "actor", "env"))
        answers, requests, trajectories = (TurnChannel(channel, number) for channel in self._channels)
        metrics = LocalChannel()
        for env in envs:
            env.worker.begin_turn(mode, frames)
        rollout.worker.begin_turn(mode)
        learner.worker.begin_turn()
        self._copy_weights()
        note("turn", number)
        playing = [
            *(env.start(env.worker.interact(answers, requests, None, trajectories, metrics)) for env in envs),
            rollout.start(rollout.worker.generate(requests, answers, metrics)),
        ]
        learner.start(learner.worker.recv_rollout_trajectories(trajectories)).result()
        steps, ends_s = 0, 0.0
        while not ends_s or time.time() < ends_s:
            training = learner.start(learner.worker.run_training())
            wait([training, *playing], return_when=FIRST_COMPLETED)
            for one in playing:
                if one.done():
                    raise RuntimeError("a worker ended before its turn") from one.exception()
            training.result()
            steps += 1
            if steps % self._cfg.runner.weight_sync_interval == 0:
                self._copy_weights()
            if not ends_s:
                ends_s = time.time() + self._cfg.turn_s
                note("begin", number)
        note("end", number)
        for member in self._all():
            member.start(member.worker.stop()).result(STOP_S)
        for one in playing:
            one.result(STOP_S)

    def _copy_weights(self) -> None:
        (rollout,), (learner,) = self._members["rollout"], self._members["actor"]
        model = learner.worker.model
        weights = {name.replace(WRAPPED, ""): each.detach() for name, each in model.named_parameters()}

        async def load() -> None:
            async with rollout.worker._turn():
                rollout.worker.hf_model.load_state_dict(weights, strict=False)

        rollout.start(load()).result()

    def _all(self) -> list[Member]:
        return [member for members in self._members.values() for member in members]

    def _without_ray(self) -> None:
        """Replace the functions of Ray that RLinf's workers call."""
        by_name = {self._cfg[name].group_name: size for name, size in self._sizes.items()}
        placement = SimpleNamespace(get_world_size=self._sizes.__getitem__)
        Worker.__init__ = lambda *_: None
        for module in (env_worker, huggingface_worker, fsdp_actor_worker):
            module.HybridComponentPlacement = lambda *_: placement
            module.Cluster = lambda *_: None
        for module in (routing, rlinf.scheduler):
            module.get_group_world_size = lambda _, name: by_name[name]
        sys.setswitchinterval(SWITCH_S)
        os.environ["LOCAL_RANK"] = "0"
        store = tempfile.mkdtemp()
        torch.distributed.init_process_group("gloo", f"file://{store}/store", rank=0, world_size=1)
