"""An action request and its answer, without inference: over our request channel and over RLinf's channels."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

from benchmarks.micro.kit import cpu_seconds, medians, settings_of
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import ActionRequest
from rlinf_async.hosts.channels import start_channels
from rlinf_async.hosts.rlinf.worker_process import EXT_MODULE, OWN_MODULE, InstallsPlugin
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.request_server import RequestServer
from rlinf_async.wire.payloads import read_sealed
from rlinf_async.wire.shown_memory import Reader

REQUEST_NUMBERS = itertools.count()
PICTURE_SIDE = 64
WARM_UP_REQUESTS = 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """`shards` shards ask at the same time, each `requests` times for `envs` environments.

    Between two requests a shard pauses for a random time of 0.5 to 1.5 times `pause_s`.
    """

    envs: int
    shards: int
    requests: int
    pause_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.shards} x {self.envs}" + (f", {self.pause_s:g} s apart" if self.pause_s else "")


COMPARED_CASES = (
    Case(envs=1, shards=1, requests=300),
    Case(envs=8, shards=1, requests=200),
    Case(envs=32, shards=1, requests=150),
    Case(envs=1, shards=16, requests=60),
    Case(envs=32, shards=16, requests=20),
    Case(envs=1, shards=64, requests=20),
)
PACED_CASE = Case(envs=1, shards=64, requests=60, pause_s=0.1)
"""Up to 640 separate requests per second from one process. RLinf's blocking env worker cannot do this."""


def observation(envs: int) -> dict[str, Any]:
    """Return an RLinf env worker's message: a picture, a state and an instruction for every environment."""
    obs = {
        "main_images": torch.randint(0, 256, (envs, PICTURE_SIDE, PICTURE_SIDE, 3), dtype=torch.uint8),
        "states": torch.rand(envs, 8),
        "task_descriptions": ["press the button"] * envs,
    }
    return {"obs": obs, "final_obs": None}


def answer(envs: int) -> dict[str, Any]:
    """Return the answer of an RLinf rollout worker with one action of four numbers."""
    return {
        "version": 0,
        "actions": torch.zeros(envs, 1, 4),
        "prev_logprobs": torch.zeros(envs, 4),
        "prev_values": torch.zeros(envs, 1),
        "forward_inputs": {"action": torch.zeros(envs, 4)},
    }


class InstantPolicy:
    """A policy that reads the requests, and answers without a forward pass."""

    def __init__(self) -> None:
        self._reader = Reader()

    async def act(self, batch: Sequence[Any]) -> list[dict[str, Any]]:
        payloads = [await read_sealed(pending.request.payload, self._reader) for pending in batch]
        return [answer(len(payload["obs"]["main_images"])) for payload in payloads]


class AskingWorker(InstallsPlugin, Worker):
    """An env worker with environments that take no time."""

    async def ask(self, channel: Any, case: Case) -> list[float]:
        """Send requests as env shards do; return the seconds of each."""
        client = RequestClient({"": channel})
        shards = (self._shard(client, shard, case) for shard in range(case.shards))
        return [seconds for times in await asyncio.gather(*shards) for seconds in times]

    async def _shard(self, client: RequestClient, shard: int, case: Case) -> list[float]:
        times, payload = [], observation(case.envs)
        for _ in range(case.requests):
            began = time.perf_counter()
            request = ActionRequest(
                shard=shard, number=next(REQUEST_NUMBERS), size=case.envs, payload=payload
            )
            await client.act(request)
            times.append(time.perf_counter() - began)
            if case.pause_s:
                await asyncio.sleep(case.pause_s * random.uniform(0.5, 1.5))
        return times

    async def ask_stock(self, to_rollout: Channel, to_env: Channel, case: Case) -> list[float]:
        """Send the requests over RLinf's channels, in its env worker's order; a shard is a pipeline stage."""
        payload, began, times = observation(case.envs), {}, []
        for stage in range(case.shards):
            began[stage] = time.perf_counter()
            to_rollout.put(payload, key=f"0_0_{stage}")
        for turn in range(case.requests):
            for stage in range(case.shards):
                to_env.get(key=f"0_0_{stage}")
                times.append(time.perf_counter() - began[stage])
                if turn + 1 < case.requests:
                    began[stage] = time.perf_counter()
                    to_rollout.put(payload, key=f"0_0_{stage}")
        return times


class AnsweringWorker(InstallsPlugin, Worker):
    """A rollout worker with a model that takes no time."""

    async def serve(self, channel: Any) -> None:
        await serve_policy(requests=RequestServer({"": channel}, rank=0), policy=InstantPolicy())

    async def serve_stock(self, to_rollout: Channel, to_env: Channel, case: Case) -> None:
        """Answer over RLinf's channels, in the order of its rollout worker."""
        for _ in range(case.requests):
            for stage in range(case.shards):
                payload = await to_rollout.get(key=f"0_0_{stage}", async_op=True).async_wait()
                result = answer(len(payload["obs"]["main_images"]))
                to_env.put(result, key=f"0_0_{stage}", async_op=True)


class Trips:
    """An env worker and a rollout worker in a Ray cluster, with our request channel and RLinf's channels."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_ADDRESS", "local")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ[EXT_MODULE] = OWN_MODULE  # without our module, stock workers do not run on a CPU
        cluster = Cluster(num_nodes=1)
        self._env = launch(AskingWorker.create_group(), cluster, "micro_env")
        self._rollout = launch(AnsweringWorker.create_group(), cluster, "micro_rollout")
        self._requests, self._coordinator = start_channels(_settings(), version=0)
        self._stock = [Channel.create("micro_to_rollout"), Channel.create("micro_to_env")]
        self._serving = self._rollout.serve.remote(self._requests)

    def ours(self, case: Case) -> list[float]:
        return ray.get(self._env.ask.remote(self._requests, case))

    def stock(self, case: Case) -> list[float]:
        serving = self._rollout.serve_stock.remote(*self._stock, case)
        times = ray.get(self._env.ask_stock.remote(*self._stock, case))
        ray.get(serving)
        return times

    def close(self) -> None:
        ray.get(self._requests.close_requests.remote())
        ray.get(self._serving)
        ray.shutdown()


def launch(group: Any, cluster: Cluster, name: str) -> Any:
    placement = NodePlacementStrategy([0])
    launched = group.launch(cluster, name=name, placement_strategy=placement, disable_distributed_log=True)
    return launched.worker_info_list[0].worker


def _settings() -> RunSettings:
    """Return settings with one inference rank for the environments of the largest case."""
    envs = max(case.envs * case.shards for case in COMPARED_CASES)
    plan = ShardPlan(total_envs=envs, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=1)
    return settings_of(plan)


def _percentile(times: Sequence[float], percent: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def measure(rounds: int, cases: Sequence[Case] = COMPARED_CASES) -> dict[str, Any]:
    """Measure our channel and RLinf's by turns; return medians over the rounds."""
    trips = Trips()
    results = {case.name: _compare(trips, case, rounds) for case in cases}
    trips.ours(replace(PACED_CASE, requests=WARM_UP_REQUESTS))
    results[PACED_CASE.name] = {"ours": medians([_observe(trips.ours, PACED_CASE) for _ in range(rounds)])}
    trips.close()
    return {"pixels": PICTURE_SIDE, "rounds": rounds, "shards x environments": results}


def _compare(trips: Trips, case: Case, rounds: int) -> dict[str, Any]:
    seen: dict[str, list[dict[str, float]]] = {"ours": [], "stock": []}
    for trip in (trips.ours, trips.stock):
        trip(replace(case, requests=WARM_UP_REQUESTS))
    for _ in range(rounds):
        seen["ours"].append(_observe(trips.ours, case))
        seen["stock"].append(_observe(trips.stock, case))
    found = {way: medians(observed) for way, observed in seen.items()}
    return {**found, "p50_ratio": round(found["ours"]["p50_ms"] / found["stock"]["p50_ms"], 3)}


def _observe(trip: Any, case: Case) -> dict[str, float]:
    cpu: list[float] = []
    began = time.perf_counter()
    with cpu_seconds(cpu):
        times = trip(case)
    elapsed, count = time.perf_counter() - began, case.shards * case.requests
    shares = {f"p{percent}_ms": 1000 * _percentile(times, percent) for percent in (50, 90, 99)}
    return {**shares, "requests_per_second": count / elapsed, "cpu_ms_per_request": 1000 * cpu[0] / count}
