"""The shards of every host, which play the same environments and say alike what they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.kit.ends import Ends
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.shard import Shard
from rlinf_async.hosts.workers.shard import ShardOutput, Stage
from rlinf_async.hosts.workers.shard import TrainShard as WorkersShard
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter
from tests.conformance.environments import ACTION, CHUNK

ENVS, DECISIONS = 4, 4
Say = Callable[[str], object]


@dataclass
class Output:
    """What a host makes of what environments have given for a decision, or for a reset."""

    observation: dict[str, Any]
    final: dict[str, Any] | None
    rewards: torch.Tensor
    """[B], summed over a decision."""
    ended: torch.Tensor
    """[B]."""
    episodes: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Playing:
    """A shard of a host, and how its outputs are read."""

    shard: Any
    answer: Callable[[], Any]
    read: Callable[[Any], Output]
    built: list[Any]
    """The environments, those that play now last."""

    def play(self, rollouts: int = 1, decisions: int = DECISIONS) -> list[Output]:
        """The outputs of so many rollouts, each read when all have been played."""
        found = asyncio.run(self._play(rollouts, decisions))
        return [self.read(output) for output in found]

    async def _play(self, rollouts: int, decisions: int) -> list[Any]:
        outputs = []
        for _ in range(rollouts):
            outputs.append(await self.shard.start())
            for _ in range(decisions):
                outputs.append(await self.shard.step(self.answer()))
            await self.shard.finish()
        return outputs


Host = Callable[..., Any]
"""A context manager that takes a class of environments, and gives a `Playing` of shard 1."""


def of_workers(output: ShardOutput) -> Output:
    return Output(output.observation, output.final_observation, output.rewards, output.ended, output.episodes)


def _advanced(options: dict[str, Any]) -> AsyncConfig:
    # To the horizon, on every host: what comes after an end is compared as well.
    to_the_horizon = {"mode": "full", "skip": {"ended": False}, "rollout": {"shards": 1}}
    return AsyncConfig.from_mapping({**to_the_horizon, "advanced": options})


@contextmanager
def local(env_cls: type, *, auto_reset: bool = False, **advanced: Any) -> Iterator[Playing]:
    """The host of one process, which refuses environments that reset themselves."""
    assert not auto_reset
    built: list[Any] = []

    def build(first: int, size: int) -> Any:
        section = OmegaConf.create({"auto_reset": False})
        built.append(env_cls(section, size, first // size, 2, None))
        return built[-1]

    settings = LocalSettings(
        total_envs=2 * ENVS,
        env_workers=2,
        horizon=DECISIONS,
        global_batch_size=2 * ENVS * DECISIONS,
        micro_batch_size=2 * ENVS * DECISIONS,
        asynchrony=_advanced(advanced),
    )
    shard = Shard(1, settings=settings, build=build, busy=BusyMeter(width=2))
    actions = torch.zeros(ENVS, CHUNK, ACTION)

    try:
        yield Playing(shard, lambda: {"actions": actions}, of_workers, built)
        assert not actions.any(), "environments have written into what the policy has answered"
    finally:
        shard.close()


@contextmanager
def workers(
    env_cls: type, *, auto_reset: bool = False, say_endless: Say | None = None, **advanced: Any
) -> Iterator[Playing]:
    """Env workers beside a framework that has none, as veRL's."""
    section = OmegaConf.create({"auto_reset": auto_reset, "ignore_terminations": False})
    built: list[Any] = []

    def build(_: int | None = None) -> Any:
        built.append(env_cls(section, ENVS, 1, 2, None))
        return built[-1]

    with ThreadPoolExecutor(1) as thread:
        simulators = SimulatorThread(1, thread, _advanced(advanced).advanced)
        stage = Stage(
            env=build(), section=section, size=ENVS, horizon=DECISIONS, simulators=simulators, rebuild=build
        )
        limits = {"max_episode_steps": CHUNK * DECISIONS}
        ends = Ends.of(limits, rollout=CHUNK * DECISIONS, say=say_endless) if say_endless else None
        shard = WorkersShard(stage, busy=BusyMeter(), number=0, ends=ends)
        actions = torch.zeros(ENVS, CHUNK, ACTION)

        yield Playing(shard, lambda: {"actions": actions}, of_workers, built)
        assert not actions.any(), "environments have written into what the policy has answered"


@contextmanager
def rlinf(
    env_cls: type, *, auto_reset: bool = False, say_endless: Say | None = None, **advanced: Any
) -> Iterator[Playing]:
    """RLinf's own env worker."""
    from rlinf_async.hosts.rlinf.env_shard import TrainShard
    from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
    from tests.hosts.rlinf.workers import in_one_process, with_walks

    built: list[Any] = []

    def build(**kwargs: Any) -> Any:
        built.append(env_cls(**kwargs))
        return built[-1]

    cfg = _rlinf_config(auto_reset).copy()
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(cfg), build)
        worker.asynchrony = _advanced(advanced)
        simulators = worker.simulators("train", 1)
        shard = TrainShard(worker, 1, simulators, worker._busy, say_endless=say_endless)
        ended = [torch.zeros(ENVS, dtype=torch.bool)]
        actions = torch.zeros(ENVS, CHUNK, ACTION)

        def read(output: Any) -> Output:
            env = output.env
            done = env.dones.any(dim=1)
            first = env.rewards is None
            if not auto_reset:  # RLinf notes the end when it comes; who trains looks at all of a rollout
                ended[:] = [done if first else ended[0] | done]
            asked = shard.observation(output)
            rewards = torch.zeros(ENVS, dtype=torch.float32) if first else env.rewards.float().sum(dim=1)
            over = done if auto_reset else ended[0]
            return Output(asked["obs"], asked["final_obs"], rewards, over, output.info)

        yield Playing(shard, lambda: {"actions": actions}, read, built)
        assert not actions.any(), "environments have written into what the policy has answered"


@cache
def _rlinf_config(auto_reset: bool) -> Any:
    from tests.hosts.rlinf.workers import config

    return config(
        "rollout.pipeline_stage_num=2",
        f"env.train.total_num_envs={2 * ENVS}",
        f"env.train.max_episode_steps={CHUNK * DECISIONS}",
        "actor.micro_batch_size=4",
        "actor.global_batch_size=32",
        f"env.train.auto_reset={str(auto_reset).lower()}",
    )


HOSTS: dict[str, Host] = {"local": local, "workers": workers, "rlinf": rlinf}
SELF_RESETTING = ("workers", "rlinf")
"""The hosts of environments that reset themselves."""
SEEN_WHOLE = ("local", "workers")
"""Hosts whose policies are shown all fields, and not those that RLinf knows alone."""


def host_or_skip(name: str) -> Host:
    """The host of that name, where its framework is installed."""
    import pytest

    if name == "rlinf" and find_spec("rlinf") is None:
        pytest.skip("RLinf is not installed")
    return HOSTS[name]
