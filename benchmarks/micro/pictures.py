"""The way of rollouts with pictures from env worker to micro-batches, over our way and over RLinf's own.

Both begin with the policy's inputs of every decision, and end with a learner's micro-batches; every picture
in these is read. RLinf's way is that of its env worker and of its actor: trajectories through a channel,
joined, shuffled and cut by its own functions. Our inputs are the copies that `Contract` makes of the
simulators' observations; `copy_cpu_s_per_gb` is the cost of these copies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from rlinf.data.embodied_io_struct import (
    ChunkStepResult,
    EmbodiedRolloutResult,
    convert_trajectories_to_batch,
)
from rlinf.scheduler import Channel, Cluster, Worker
from rlinf.utils.nested_dict_process import split_dict_to_chunk
from rlinf.workers.actor.fsdp_actor_worker import (
    process_nested_dict_for_adv,
    process_nested_dict_for_train,
)

from benchmarks.micro.kit import cpu_seconds, medians, settings_of, single_worker_plan
from benchmarks.micro.requests import launch
from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.contract import Contract
from rlinf_async.hosts.kit.pieces import cut_into_pieces
from rlinf_async.hosts.kit.samples import side_by_side
from rlinf_async.hosts.kit.scoring import with_numbers
from rlinf_async.hosts.rlinf.trajectory import EnvStep, Trajectory
from rlinf_async.hosts.rlinf.worker_process import EXT_MODULE, OWN_MODULE, InstallsPlugin
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.rollout_data import HeldPieces, PieceClient, TrajectoryClient
from rlinf_async.ray_runtime.processes.run_process import exempt_present_objects
from rlinf_async.wire.connection import Address
from rlinf_async.wire.memory import MemoryPool, Reuse
from rlinf_async.wire.shown_memory import RolloutMemory

CAMERAS = ("main", "wrist", "extra")
PICTURE_PIXELS = 224
DECISIONS = 64
MICRO_BATCH_SAMPLES = 64
WARM_UP_BATCHES = 2
GIGABYTE = 10**9
WAYS = ("ours", "stock")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Rollouts of `environments` shards of one environment, `batches` in all."""

    environments: int
    batches: int

    @property
    def gigabytes(self) -> float:
        pictures = self.environments * DECISIONS * len(CAMERAS)
        return pictures * 3 * PICTURE_PIXELS**2 / GIGABYTE

    def settings(self) -> RunSettings:
        return settings_of(
            single_worker_plan(self.environments),
            batches=self.batches,
            micro_batch_size=min(MICRO_BATCH_SAMPLES, self.environments),
            max_staleness=self.batches,
            horizon=DECISIONS,
        )


class CollectingWorker(InstallsPlugin, Worker):
    """An env worker with simulators and a policy that take no time."""

    def make(self, load: Load) -> None:
        """Make the policy's inputs of all decisions; pictures show the number of their decision."""
        self._settings = load.settings()
        self._inputs = [
            [_inputs(shard * DECISIONS + decision) for decision in range(DECISIONS)]
            for shard in range(load.environments)
        ]
        files = MemoryPool(Reuse.UNMAPPED)
        self._contracts = [Contract(shard, 1) for shard in range(load.environments)]
        for contract in self._contracts:
            contract.rows = RolloutMemory(files, rows=DECISIONS)
        self._copies: list[list[Tree]] = []
        exempt_present_objects()  # as the workers of a run do; it helps both ways

    def copy(self) -> None:
        """Copy the observations of the simulators, as in every rollout."""
        for contract, observations in zip(self._contracts, self._inputs, strict=True):
            assert contract.rows is not None
            contract.rows.begin()
            self._copies.append([])
            for observation in observations:
                self._copies[-1].append(contract.observation(observation))
                contract.rows.next()

    async def ours(self, coordinator: Any) -> None:
        if not hasattr(self, "_client"):
            self._client = TrajectoryClient(coordinator)
        await asyncio.gather(*map(self._hand_over, range(len(self._copies))))
        self._copies = []

    async def _hand_over(self, shard: int) -> None:
        ticket = await self._client.admit(shard)
        assert ticket is not None, "every batch has a place for every shard"
        trajectory, ends = Trajectory(), torch.zeros(1, 1, dtype=torch.bool)
        step = EnvStep(obs={}, dones=ends, terminations=ends, truncations=ends)
        for inputs in self._copies[shard]:
            trajectory.see(step, None)
            trajectory.decide(dict(inputs), torch.zeros(1, 7), version=0)
            trajectory.reward(torch.zeros(1, 1))
        trajectory.see(step, None)
        pieces = cut_into_pieces(
            ticket,
            trajectory.whole(),
            None,
            settings=self._settings,
            versions=[0] * DECISIONS,
            played=[None] * DECISIONS,
            steps_per_decision=1,
        )
        await self._client.put(ticket, pieces)

    def stock(self, channel: Channel) -> None:
        ends = torch.zeros(1, 1, dtype=torch.bool)
        for shard in self._inputs:
            rollout = EmbodiedRolloutResult(max_episode_length=DECISIONS)
            rollout.append_step_result(ChunkStepResult(dones=ends))
            for inputs in shard:
                rollout.append_step_result(
                    ChunkStepResult(prev_logprobs=torch.zeros(1, 7), dones=ends, forward_inputs=dict(inputs))
                )
            for trajectory in rollout.to_splited_trajectories(1):
                channel.put(trajectory)


class LearningWorker(InstallsPlugin, Worker):
    """A learner rank that reads its micro-batches, and trains nothing."""

    def make(self, load: Load) -> None:
        self._load, self._inputs = load, HeldInputs()
        self._pieces, self._peak = HeldPieces(), _Peak()

    async def piece_address(self) -> Address:
        return self._pieces.address()

    async def ours(self, coordinator: Any, batch: int) -> float:
        """Take a batch; return the most memory of this process meanwhile, in bytes of the rollout."""
        self._peak.forget()
        client = PieceClient(coordinator, self._pieces, rank=0)
        self._inputs.clear()
        last, numbers = False, []
        while not last:
            pieces, last = await client.take(batch, whole=False)
            if pieces:
                payloads = [with_numbers(piece.payload, self._inputs) for piece in pieces]
                rollout = side_by_side(payloads, DECISIONS)
                numbers.append(leaf(rollout, INPUTS_FIELD).flatten(0, 1))
        del pieces, payloads, rollout
        shuffled = _shuffled(torch.cat(numbers))
        size = self._load.settings().micro_batch_size
        self._check({INPUTS_FIELD: part} for part in shuffled.split(size))
        return self._peak.bytes() / GIGABYTE / self._load.gigabytes

    async def stock(self, channel: Channel) -> float:
        self._peak.forget()
        received = []
        for _ in range(self._load.environments):
            received.append(await channel.get(async_op=True).async_wait())
        batch = process_nested_dict_for_adv(convert_trajectories_to_batch(received), 1)
        del received
        size = len(batch["prev_logprobs"]) * batch["prev_logprobs"].shape[1]
        batch = process_nested_dict_for_train(batch, _shuffled(torch.arange(size)))
        self._check(split_dict_to_chunk(batch, size // self._load.settings().micro_batch_size))
        return self._peak.bytes() / GIGABYTE / self._load.gigabytes

    def _check(self, micro_batches: Iterator[Tree] | Sequence[Tree]) -> None:
        """Read the first and last number of every picture."""
        seen = 0
        for micro_batch in micro_batches:
            inputs: Any = self._inputs.with_inputs(micro_batch)[INPUTS_FIELD]
            ends = [inputs[camera].flatten(1)[:, (0, -1)] for camera in CAMERAS]
            assert (torch.cat(ends, dim=1) == inputs["number"] % 256).all()
            seen += int(inputs["number"].sum())
        decisions = self._load.environments * DECISIONS
        assert seen == decisions * (decisions - 1) // 2


class _Peak:
    """The most memory of this process beyond that of its beginning, with shared memory that it has read."""

    def __init__(self) -> None:
        self._before = self._status("VmRSS")

    def forget(self) -> None:
        """Forget the most so far."""
        Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        return self._status("VmHWM") - self._before

    def _status(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))


def _inputs(number: int) -> Tree:
    picture = partial(torch.full, (1, PICTURE_PIXELS, PICTURE_PIXELS, 3), number % 256, dtype=torch.uint8)
    return {**{camera: picture() for camera in CAMERAS}, "number": torch.tensor([[number]])}


def _shuffled(numbers: torch.Tensor) -> torch.Tensor:
    return numbers[torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))]


def measure(rounds: int, environments: int) -> dict[str, Any]:
    """Measure both ways by turns; return medians over the rounds: CPU of all processes, and the learner's
    memory.
    """
    os.environ.setdefault("RAY_ADDRESS", "local")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[EXT_MODULE] = OWN_MODULE  # without our module, stock workers do not run on a CPU
    load, cluster = Load(environments=environments, batches=WARM_UP_BATCHES + rounds), Cluster(num_nodes=1)
    env = launch(CollectingWorker.create_group(), cluster, "pictures_env")
    # One process for each way: memory that an allocator keeps from one way would count for the other.
    ours, stock = (launch(LearningWorker.create_group(), cluster, f"pictures_learner_{way}") for way in WAYS)
    ray.get([worker.make.remote(load) for worker in (env, ours, stock)])
    channel = Channel.create("pictures")
    coordinator: Any = (
        ray.remote(Coordinator).options(num_cpus=0, max_concurrency=1000).remote(load.settings(), 0)
    )
    ray.get(coordinator.introduce.remote(ray.get([ours.piece_address.remote()])))
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    turns: dict[str, Callable[[int], list[Any]]] = {
        "ours": lambda batch: [env.ours.remote(coordinator), ours.ours.remote(coordinator, batch)],
        "stock": lambda _: [env.stock.remote(channel), stock.stock.remote(channel)],
    }
    for batch in range(load.batches):
        cpu: list[float] = []
        with cpu_seconds(cpu):
            ray.get(env.copy.remote())
        for way, turn in turns.items():
            with cpu_seconds(cpu):
                _, peak = ray.get(turn(batch))
            seen[way].append({"cpu_s_per_gb": cpu[-1] / load.gigabytes, "high_water": peak})
        seen["ours"][-1]["copy_cpu_s_per_gb"] = cpu[0] / load.gigabytes
    ray.shutdown()
    return {
        "rounds": rounds,
        "gigabytes": round(load.gigabytes, 3),
        **{way: medians(observed[WARM_UP_BATCHES:]) for way, observed in seen.items()},
    }
