"""RLinf's env worker with a loop of its own for every environment shard."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from rlinf.envs.utils import get_env_attr
from rlinf.workers.env.env_worker import EnvWorker

from rlinf_async.core.tracing import BusyMeter
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.rlinf.env_shard import EvalShard, TrainShard
from rlinf_async.hosts.rlinf.host import WRONG_RUNNER, InstallsPlugin
from rlinf_async.hosts.rlinf.memory import MemoryFile, MemoryPool
from rlinf_async.hosts.rlinf.observed import Observed
from rlinf_async.hosts.rlinf.recorder import ShardRecorder
from rlinf_async.hosts.rlinf.request_channel import RequestClient
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.simulators import simulators_apart
from rlinf_async.hosts.rlinf.threads import hand_over_quickly
from rlinf_async.hosts.rlinf.trajectory_channel import TrajectoryClient
from rlinf_async.loops.env import evaluate_shard, run_shard, together


class ShardedEnvWorker(InstallsPlugin, Observed, EnvWorker):
    """Steps several independent shards; a shard is what RLinf calls a stage, with a thread of its own.

    Every simulator is built and used in the thread of its shard: simulators may block, and some are
    bound to the thread that made their rendering context.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        hand_over_quickly()
        self._threads = {
            mode: [
                ThreadPoolExecutor(1, thread_name_prefix=f"{mode}-{stage}") for stage in range(self.stage_num)
            ]
            for mode in ("train", "eval")
        }
        self._memory: MemoryPool | None = None
        self._busy = BusyMeter(width=self.stage_num)
        self._episodes: dict[int, list[list[dict[str, torch.Tensor]]]] = defaultdict(
            lambda: [[] for _ in range(self.stage_num)]
        )

    def _setup_env_and_wrappers(
        self, env_cls: Any, env_cfg: DictConfig, num_envs_per_stage: int
    ) -> list[Any]:
        mode = "eval" if self.enable_eval and env_cfg is self.cfg.env.eval else "train"
        built: list[Any] = []

        def build(**kwargs: Any) -> Any:
            if not built:
                built.extend(_in_threads(self._threads[mode], env_cls, kwargs, apart=self._apart))
            return built[kwargs["seed_offset"] % self.stage_num]

        return super()._setup_env_and_wrappers(build, env_cfg, num_envs_per_stage)

    @property
    def _apart(self) -> bool:
        """Whether shards may be built at the same time: simulators with a process each."""
        return simulators_apart(self.cfg.env.train)

    def _init_env(self) -> None:
        # As in the base class, but each shard in its thread.
        if self.enable_train and self.cfg.env.train.auto_reset:
            resets = _each(
                [
                    partial(thread.submit, env.reset)
                    for thread, env in zip(self._threads["train"], self.env_list, strict=True)
                ],
                apart=self._apart,
            )
            for observation, _ in resets:
                self.last_obs_list.append(observation)
                self.last_intervened_info_list.append((None, None))
        if self.train_enable_offload and self.cfg.env.train.get("enable_init_offload", True):
            _each(self._offloads("train"), apart=self._apart)
        if self.eval_enable_offload:
            _each(self._offloads("eval"), apart=self._apart)

    def _offloads(self, mode: str) -> list[Callable[[], Future[Any]]]:
        envs = self.env_list if mode == "train" else self.eval_env_list
        return [
            partial(thread.submit, get_env_attr(env, "offload"))
            for thread, env in zip(self._threads[mode], envs, strict=True)
        ]

    async def leave(self) -> None:
        """Have the simulators for training leave their accelerator, if RLinf's config says so."""
        if self.train_enable_offload:
            await self._offload("train")

    async def _offload(self, mode: str) -> None:
        offload = partial(_each, self._offloads(mode), apart=self._apart)
        await asyncio.get_running_loop().run_in_executor(None, offload)

    async def interact(self, *_: Any, **__: Any) -> None:
        """RLinf's own loop, which does not run here."""
        raise RuntimeError(WRONG_RUNNER)

    async def offer_memory(self) -> list[Any]:
        """Something that an inference rank can read if it can read this worker's memory."""
        self._offer = MemoryFile()
        return self._offer.write(None)

    async def share_memory(self, readable: list[bool]) -> None:
        """Hand observations to inference in memory, if all inference ranks can read that of this rank."""
        self._offer.close()
        self._memory = MemoryPool() if readable[self._rank] else None

    async def run_shards(self, settings: Settings, requests: Any, trajectories: Any) -> None:
        """Collect rollouts in all shards until the gate closes for good."""
        policy = self._policy(settings, requests)
        hand_over = TrajectoryClient(trajectories)
        await together(
            run_shard(
                shard=shard,
                env=TrainShard(self, stage, self._threads["train"][stage], self._busy),
                policy=policy,
                trajectories=hand_over,
                recorder=self._recorder(settings, stage),
                spans=self.spans,
            )
            for stage, shard in enumerate(settings.plan.shards_of_worker(self._rank))
        )

    async def evaluate_shards(self, settings: Settings, requests: Any) -> dict[str, torch.Tensor]:
        """Run the evaluation episodes beside training, through the same inference ranks."""
        policy = self._policy(settings, requests)
        envs = [EvalShard(self, stage, self._threads["eval"][stage]) for stage in range(self.stage_num)]
        # Numbered on from the training shards, which may be asking at the same time.
        first = settings.plan.shards + settings.plan.shards_of_worker(self._rank).start
        await together(
            evaluate_shard(
                shard=first + stage,
                env=env,
                policy=policy,
                rollouts=self.eval_rollout_epoch,
                spans=self.spans,
            )
            for stage, env in enumerate(envs)
        )
        if self.eval_enable_offload:
            await self._offload("eval")
        return concatenate_metrics([info for env in envs for info in env.episodes])

    def _policy(self, settings: Settings, requests: Any) -> RequestClient:
        counts_rollouts = not settings.asynchrony.rollout.enabled
        return RequestClient(requests, counts_rollouts=counts_rollouts, memory=self._memory)

    async def pop_metrics(self, batch: int) -> tuple[dict[str, torch.Tensor], list[float]]:
        """Episode statistics of the rollouts for `batch`; busy shares of the shards since the last call."""
        shards = self._episodes.pop(batch, [])
        # In the order of the shards: the rounding of a mean does not depend on who was first.
        return concatenate_metrics([info for shard in shards for info in shard]), self._busy.pop()

    async def close_envs(self) -> None:
        """Close the simulators that can be closed, so that their processes end with the run."""
        for mode, envs in (("train", self.env_list), ("eval", self.eval_env_list)):
            for thread, env in zip(self._threads[mode], envs, strict=False):
                close = getattr(env, "close", None)
                if callable(close):
                    await asyncio.get_running_loop().run_in_executor(thread, close)

    def _recorder(self, settings: Settings, stage: int) -> Callable[[Ticket], ShardRecorder]:
        def build(ticket: Ticket) -> ShardRecorder:
            return ShardRecorder(
                ticket,
                settings=settings,
                worker=self,
                stage=stage,
                episodes=self._episodes[ticket.batch][stage],
            )

        return build


def _in_threads(
    threads: Sequence[ThreadPoolExecutor], env_cls: Any, kwargs: Mapping[str, Any], *, apart: bool
) -> list[Any]:
    """The environments of all shards, each made in its thread with what RLinf gives to the first."""
    first = kwargs["seed_offset"]
    makers = [
        partial(thread.submit, env_cls, **{**kwargs, "seed_offset": first + stage})
        for stage, thread in enumerate(threads)
    ]
    return _each(makers, apart=apart)


def _each(starts: Sequence[Callable[[], Future[Any]]], *, apart: bool) -> list[Any]:
    """The results of what is started: all at once, or in turn where simulators share a process."""
    if not apart:
        return [start().result() for start in starts]
    return [future.result() for future in [start() for start in starts]]


def concatenate_metrics(episodes: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Join per-rollout episode statistics by name."""
    names = {name for info in episodes for name in info}
    return {name: torch.cat([info[name].reshape(-1) for info in episodes if name in info]) for name in names}
