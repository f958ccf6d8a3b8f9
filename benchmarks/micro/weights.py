"""New weights from a learner to two inference ranks: outside Ray, as the plugin sends them, and by Ray's
object store.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
import torch

from benchmarks.micro.differences import bytes_of, trained
from benchmarks.micro.kit import cpu_seconds, medians, settings_of
from rlinf_async.core.host_memory import copy_all, host_tensors
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.loops.finite import check_weights
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.publication import weight_file, weight_mirror
from rlinf_async.ray_runtime.publication.weight_mirror import Part, unpack_part
from rlinf_async.ray_runtime.publication.weights import (
    WeightClient,
    WeightCopy,
    WeightSender,
    WeightSnapshot,
    apply,
)
from rlinf_async.wire import memory
from rlinf_async.wire.payloads import pack

RANK_COUNT = 2
RATE, OPTIMIZER_STEPS = 2e-6, 16
"""The learning rate of AdamW, and its steps from one version to the next."""
ALONE_S = 0.5
CHUNK_BYTES = 2**28
WARM_UP_VERSIONS = 3
"""Unmeasured versions: after them all memory is allocated, and Ray's store holds two versions."""

Seen = dict[str, float]


class Weights(WeightCopy):
    """A learner's weight copy; all weights are trained."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model

    def take(self) -> WeightSnapshot | None:
        state = self._model.state_dict()
        names = self.choose(state, changing=state.keys())
        for name, place in self.places({name: state[name] for name in names}).items():
            self.write(place, state[name])
        return self.snapshot()


class SmallSteps:
    """Training with many small operations in a thread, which needs the Python interpreter all the time."""

    def __init__(self) -> None:
        self._model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
        self._inputs = torch.ones(4, 16)
        self._thread, self._end = ThreadPoolExecutor(1), threading.Event()
        self._rate: Future[float] | None = None

    def begin(self) -> None:
        self._end.clear()
        self._rate = self._thread.submit(self._train)

    def end(self) -> float:
        """Stop training; return the steps per second since `begin`."""
        self._end.set()
        assert self._rate is not None
        return self._rate.result()

    def _train(self) -> float:
        began, steps = time.perf_counter(), 0
        while not self._end.is_set():
            self._model(self._inputs).sum().backward()
            steps += 1
        return steps / (time.perf_counter() - began)


class Learner:
    """Holds the weights, and sends them outside Ray or by Ray's object store."""

    def __init__(self, megabytes: int) -> None:
        torch.set_num_threads(1)
        self._steps = SmallSteps()
        self._model, self._moves = model_of(megabytes), moves_of_training()
        self._sender = WeightSender(Weights(self._model))
        self._thread, self._version = ThreadPoolExecutor(1), -1
        self._memory: list[torch.Tensor] = []

    async def train(self) -> None:
        """Move the weights as `OPTIMIZER_STEPS` have moved those of a transformer, and the next time back."""
        for tensor in self._model.state_dict().values():
            words = tensor.view(torch.int16).flatten().numpy()
            words += np.resize(self._moves, len(words))
        # By turns: moves of one way only would, after some versions, make numbers that are not finite.
        self._moves = -self._moves

    async def offer(
        self, coordinator: Any, copied: Callable[[], object] = lambda: None
    ) -> tuple[float, float]:
        """Send outside Ray; return the seconds that the learner waits, and those until the announcement."""
        began, self._version = time.perf_counter(), self._version + 1
        blocked = await self._sender.offer(self._version, coordinator, SpanLog(None), on_copy=copied)
        await self._sender.sent()
        return blocked, time.perf_counter() - began

    async def train_beside(self, coordinator: Any) -> Seen:
        """Train while sending, then alone; return the share of the training rate that is left while sending,
        and the seconds of training that are lost.
        """
        began: list[float] = []

        def copied() -> None:
            began.append(time.perf_counter())
            self._steps.begin()

        await self.offer(coordinator, copied)
        beside, seconds = self._steps.end(), time.perf_counter() - began[0]
        self._steps.begin()
        await asyncio.sleep(ALONE_S)
        kept = beside / self._steps.end()
        return {"steps_kept": kept, "lost_s": (1 - kept) * seconds}

    async def put(self) -> tuple[float, float, list[Any]]:
        """Send by Ray's object store: copy the weights in this process, then make objects of the copy.

        Returns:
            The seconds that the learner waits, the seconds until the objects are there, and their references.
        """
        began = time.perf_counter()
        tensors = list(self._model.state_dict().values())
        self._memory = self._memory or host_tensors((tensor.shape, tensor.dtype) for tensor in tensors)
        copy_all(self._memory, tensors)
        blocked = time.perf_counter() - began
        references = await asyncio.get_running_loop().run_in_executor(self._thread, self._put)
        return blocked, time.perf_counter() - began, references

    def _put(self) -> list[Any]:
        chunks: list[dict[str, torch.Tensor]] = [{}]
        for name, tensor in zip(self._model.state_dict(), self._memory, strict=True):
            if sum(held.nbytes for held in chunks[-1].values()) + tensor.nbytes > CHUNK_BYTES:
                chunks.append({})
            chunks[-1][name] = tensor
        for chunk in chunks:
            check_weights(0, chunk)
        return [ray.put(pack(chunk)) for chunk in chunks]


class Rank:
    """An inference rank; with `apart` it acts as if it were on another machine than the learner."""

    def __init__(self, megabytes: int, rank: int, coordinator: Any, *, apart: bool) -> None:
        torch.set_num_threads(1)
        self._model, self._sent = model_of(megabytes), 0
        self._coordinator, self._rank = coordinator, rank
        self._client: WeightClient | None = None
        if apart:
            for module in (memory, weight_file):
                vars(module)["machine"] = lambda: "another"
            vars(weight_mirror)["unpack_part"] = self._unpack_part

    def _unpack_part(self, part: Part, *arguments: Any) -> bool:
        self._sent += len(part.content)
        return unpack_part(part, *arguments)

    async def load(self) -> tuple[float, int]:
        """Load the newest version outside Ray; return the seconds that inference waits, and the bytes that
        came from another machine.
        """
        self._sent = 0
        # Made here: the client needs a running event loop.
        self._client = self._client or WeightClient(self._coordinator, rank=self._rank)
        offered = await self._client.next()
        assert offered is not None
        began = time.perf_counter()
        for part in offered[1]:
            with part as tensors:
                apply(self._model, tensors)
        await self._client.applied(offered[0])
        return time.perf_counter() - began, self._sent

    async def get(self, references: Sequence[Any]) -> tuple[float, int]:
        """Load a version from Ray's object store; return the seconds that inference waits, and 0."""
        chunks = list(await asyncio.gather(*references))
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the store's memory is read-only, and is only read here
            for chunk in chunks:
                tensors = {n: torch.from_numpy(raw.data).view(raw.dtype) for n, raw in chunk.items()}
                apply(self._model, tensors)
        return time.perf_counter() - began, 0


def moves_of_training() -> np.ndarray:
    """Return by how many neighbours in bfloat16 training moves each weight of a transformer."""
    (before, _), (after, _) = trained(RATE, (OPTIMIZER_STEPS,))
    old, new = (bytes_of(weights, torch.bfloat16).view(np.int16) for weights in (before, after))
    return new - old


def model_of(megabytes: int) -> torch.nn.Module:
    """Return a model of bfloat16 layers of 32 MiB each."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16) for _ in range(megabytes // 32)]
    return torch.nn.Sequential(*layers)


class Ways:
    """A learner, and ranks that load its weights outside Ray or from Ray's object store."""

    def __init__(self, megabytes: int) -> None:
        os.environ.setdefault("RAY_ADDRESS", "local")
        store = 4 * megabytes * 10**6
        ray.init(num_cpus=8, object_store_memory=store, include_dashboard=False, log_to_driver=False)
        self._megabytes = megabytes
        self._learner: Handle = _start(Learner, megabytes)
        self.start_ranks(apart=False)
        self._references: list[Any] = []

    def start_ranks(self, *, apart: bool) -> None:
        """Start new ranks; with `apart` they act as if they were on another machine than the learner."""
        self._coordinator = _start(Coordinator, _settings(), 0)
        self._ranks: list[Handle] = [
            _start(Rank, self._megabytes, rank, self._coordinator, apart=apart) for rank in range(RANK_COUNT)
        ]

    def publish(self, way: str) -> Seen:
        """Publish one version by `way`; return seconds, CPU seconds and bytes."""
        ray.get(self._learner.train.remote())
        cpu: list[float] = []
        began = time.perf_counter()
        with cpu_seconds(cpu):
            if way == "object store":
                blocked, offered, references = ray.get(self._learner.put.remote())
                loads = ray.get([rank.get.remote(references) for rank in self._ranks])
                # The store holds two versions at a time: the newest, and the next one on its way.
                self._references = references
            else:
                coming = [rank.load.remote() for rank in self._ranks]
                blocked, offered = ray.get(self._learner.offer.remote(self._coordinator))
                loads = ray.get(coming)
        return {
            "learner_blocked_s": blocked,
            "offered_s": offered,
            "rank_blocked_s": statistics.mean(seconds for seconds, _ in loads),
            "everywhere_s": time.perf_counter() - began,
            "cpu_s": cpu[0],
            "mb_between_machines": sum(sent for _, sent in loads) / 1e6,
        }

    def train_beside(self) -> Seen:
        """Publish one version outside Ray while the learner trains; see `Learner.train_beside`."""
        ray.get(self._learner.train.remote())
        coming = [rank.load.remote() for rank in self._ranks]
        seen: Seen = ray.get(self._learner.train_beside.remote(self._coordinator))
        ray.get(coming)
        return seen

    def forget(self) -> None:
        """End the ranks, and free the objects of Ray's store."""
        self._references = []
        for rank in self._ranks:
            ray.kill(cast(Any, rank))

    def close(self) -> None:
        ray.shutdown()


def measure(rounds: int, megabytes: int) -> dict[str, Any]:
    """Measure sending outside Ray and by Ray's store by turns, then between machines; return medians."""
    shared, ways = _shared(), Ways(megabytes)
    seen: dict[str, list[Seen]] = {"past Ray": [], "object store": []}
    grown: dict[str, float] = {}
    for way in seen:
        for _ in range(WARM_UP_VERSIONS):
            ways.publish(way)
        grown[way], shared = (_shared() - shared) / 1e6, _shared()
    for _ in range(rounds):
        for way, observed in seen.items():
            observed.append(ways.publish(way))
    beside = [ways.train_beside() for _ in range(rounds)]
    ways.forget()
    ways.start_ranks(apart=True)
    shared = _shared()
    for _ in range(WARM_UP_VERSIONS):
        ways.publish("another machine")
    grown["another machine"] = (_shared() - shared) / 1e6
    seen["another machine"] = [ways.publish("another machine") for _ in range(rounds)]
    ways.close()
    found = {way: medians(observed) for way, observed in seen.items()}
    names = ("learner_blocked_s", "everywhere_s", "cpu_s")
    return {
        "mib": megabytes,
        "learning_rate": RATE,
        "optimizer_steps": OPTIMIZER_STEPS,
        "ranks": RANK_COUNT,
        "rounds": rounds,
        "ways": {way: {**numbers, "mb_shared": round(grown[way])} for way, numbers in found.items()},
        "small steps of the learner beside it": medians(beside),
        "past Ray / object store": {
            name: round(found["past Ray"][name] / found["object store"][name], 3) for name in names
        },
    }


def _start(kind: type, *arguments: Any, **keywords: Any) -> Any:
    """Start a Ray actor of the class `kind`."""
    started: Any = ray.remote(kind)
    return started.options(max_concurrency=100).remote(*arguments, **keywords)


def _shared() -> float:
    """Return the bytes of shared memory on this machine: of memory files, and of Ray's store."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("Shmem:")]
    return 1024 * float(kilobytes)


def _settings() -> RunSettings:
    plan = ShardPlan(
        total_envs=RANK_COUNT, env_workers=1, inference_ranks=RANK_COUNT, learner_ranks=1, shards_per_worker=1
    )
    return settings_of(plan, batches=10**6)
