"""One environment shard, as the env loop sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from rlinf_async.core.tensors import Tree
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.hosts.local.envs import EnvFactory, Environments, Outcome
from rlinf_async.hosts.local.inference import Answer
from rlinf_async.hosts.local.settings import LocalSettings

T = TypeVar("T")


@dataclass(frozen=True)
class ShardOutput:
    """What the environments show after a decision (or a reset), [B, ...] each."""

    states: torch.Tensor
    rewards: torch.Tensor
    ended: torch.Tensor
    noise: torch.Tensor
    """The chance in the next action."""


class Noise:
    """Standard normal numbers from a generator per environment.

    A request carries its noise: what is sampled depends neither on who shares the forward pass nor on
    how the environments are split into shards.
    """

    def __init__(self, *, first: int, size: int, width: int, seed: int) -> None:
        self._width = width
        keys = [np.random.SeedSequence(seed, spawn_key=(first + index,)) for index in range(size)]
        self._generators = [np.random.default_rng(key) for key in keys]

    def draw(self) -> torch.Tensor:
        """The next numbers, [envs, width]."""
        rows = [generator.standard_normal(self._width, dtype=np.float32) for generator in self._generators]
        return torch.from_numpy(np.stack(rows))


class Shard:
    """Fills `loops.ports.ShardEnv`; the environments are built and used in the shard's own thread."""

    def __init__(self, shard: int, *, settings: LocalSettings, build: EnvFactory, busy: BusyMeter) -> None:
        self.size = settings.plan.envs_per_shard
        self.horizon = settings.horizon
        self._shard = shard
        self._busy = busy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"shard-{shard}")
        first = shard * self.size
        with ExitStack() as unless_built:
            unless_built.callback(self._thread.shutdown)
            self._envs: Environments = self._thread.submit(build, first, self.size).result()
            unless_built.pop_all()
        self._noise = Noise(first=first, size=self.size, width=self.action_dim, seed=settings.seed)

    @property
    def state_dim(self) -> int:
        return self._envs.state_dim

    @property
    def action_dim(self) -> int:
        return self._envs.action_dim

    async def start(self) -> ShardOutput:
        return await self._run(self._start)

    async def step(self, answer: Answer) -> ShardOutput:
        return await self._run(lambda: self._step(answer))

    def observation(self, output: ShardOutput) -> Tree:
        return {"states": output.states, "noise": output.noise}

    def finish(self) -> None:
        """Every reset draws new initial states by itself."""

    def close(self) -> None:
        """Free the environments, once the step that may still be running has ended."""
        self._thread.submit(self._envs.close).result()
        self._thread.shutdown()

    def _start(self) -> ShardOutput:
        nothing = np.zeros(self.size, dtype=np.float32)
        return self._output(Outcome(self._envs.reset(), nothing, nothing.astype(bool)))

    def _step(self, answer: Answer) -> ShardOutput:
        return self._output(self._envs.step(answer.actions.numpy()))

    def _output(self, outcome: Outcome) -> ShardOutput:
        return ShardOutput(
            # Copied: environments may go on writing where they have shown us their state.
            states=torch.tensor(outcome.states),
            rewards=torch.tensor(outcome.rewards),
            ended=torch.tensor(outcome.ended),
            noise=self._noise.draw(),
        )

    async def _run(self, function: Callable[[], T]) -> T:
        with self._busy.busy(self._shard):
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
