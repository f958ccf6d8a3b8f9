"""The process of an env worker; it imports no framework, which would take seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from omegaconf import OmegaConf

from rlinf_async.core.sharding import simulators_apart
from rlinf_async.core.tensors import Episodes
from rlinf_async.core.types import Ticket
from rlinf_async.entry_points import ENVS_GROUP, load_class
from rlinf_async.hosts.contract import check_environments
from rlinf_async.hosts.kit.ends import Ends
from rlinf_async.hosts.kit.playing import draw_last_only
from rlinf_async.hosts.kit.rebuilds import Rebuilds, start_again
from rlinf_async.hosts.workers.eval_shard import EvalShard
from rlinf_async.hosts.workers.recorder import ShardRecorder
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.hosts.workers.shard import Stage, TrainShard
from rlinf_async.loops.foreign import let_go
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker


class EnvActor(ShardWorker):
    """One env worker: `initialise` builds the environments of its shards, each in its shard's thread."""

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        settings: WorkerSettings,
        horizons: Mapping[str, int],
        rank: int,
    ) -> None:
        """Set up env worker `rank`; `initialise` builds its environments.

        Args:
            sections: `env.train`, and `env.eval` in a run that evaluates, as plain data.
            horizons: decisions in a rollout of each section.
        """
        self._settings, self._horizons, self._rank = settings, dict(horizons), rank
        self._sections = {mode: OmegaConf.create(dict(section)) for mode, section in sections.items()}
        self._envs: dict[str, list[Any]] = {mode: [] for mode in self._sections}
        stages = settings.plan.shards_per_worker
        self._rebuilds = Rebuilds()
        self.eval_rollouts = int(sections.get("eval", {}).get("rollout_epoch") or 1)
        self.start_shards(settings.asynchrony, rank=rank, stages=stages)

    async def initialise(self) -> None:
        """Build the environments.

        Raises:
            ValueError: the environments differ from their section (`check_environments`).
        """
        start_again(self._sections["train"], generation=self.generation)
        # In a thread: building may take minutes, and the event loop must answer meanwhile.
        await asyncio.to_thread(self._build_all)

    def build_anew(self, settings: WorkerSettings) -> None:
        """Build the environments again, for another number of shards; training gets another seed."""
        self._settings = settings
        for mode in self._sections:
            self._rebuilds.count_all(mode, settings.plan.shards_per_worker)
        self._build_all()

    def _build_all(self) -> None:
        for mode, section in self._sections.items():
            build = partial(self._build, mode)
            self._envs[mode] = self.in_threads(mode, build, in_processes=simulators_apart(section))

    def train_shard(self, stage: int) -> TrainShard:
        steps = self._horizons["train"] * self._settings.steps_per_decision
        say = partial(self.remark, what="odd environments")
        return TrainShard(
            self._stage("train", stage),
            busy=self._busy,
            number=stage,
            skips_ended=self.skips_ended,
            ends=None if self._rank or stage else Ends.of(self._sections["train"], rollout=steps, say=say),
        )

    def eval_shard(self, stage: int) -> EvalShard:
        return EvalShard(self._stage("eval", stage), skips_ended=self.asynchrony.skip.ended)

    def _stage(self, mode: str, stage: int) -> Stage:
        return Stage(
            env=self._envs[mode][stage],
            section=self._sections[mode],
            size=self._size(mode),
            horizon=self._horizons[mode],
            simulators=self.simulators(mode, stage),
            rebuild=partial(self._rebuild, mode, stage),
        )

    def recorder(
        self, settings: WorkerSettings, stage: int, ticket: Ticket, episodes: Episodes
    ) -> ShardRecorder:
        train = self._sections["train"]
        every_end = bool(train.auto_reset or train.ignore_terminations)
        return ShardRecorder(ticket, settings=settings, every_end=every_end, episodes=episodes)

    def environments(self, mode: str) -> Sequence[Any]:
        return self._envs.get(mode, [])

    def _size(self, mode: str) -> int:
        return int(self._sections[mode].total_num_envs) // self._settings.plan.shards

    def _rebuild(self, mode: str, stage: int, step: int | None) -> Any:
        """Replace the environments of a stage; `step`: training environments at the checkpoint after it."""
        with ExitStack() as stack:
            if step is not None:
                in_processes = simulators_apart(self._sections["train"])
                stack.enter_context(self._rebuilds.renewing(stage, step, in_processes=in_processes))
            let_go(lambda: self._envs[mode][stage].close())
            self._rebuilds.count(mode, stage)
            self._envs[mode][stage] = self._build(mode, stage)
        return self._envs[mode][stage]

    def _build(self, mode: str, stage: int) -> Any:
        section, plan = self._sections[mode], self._settings.plan
        env = load_class(ENVS_GROUP, section.env_class)(
            cfg=self._rebuilds.seeded(mode, stage, section),
            num_envs=self._size(mode),
            # The number of the shard in the whole run, so that seeds differ.
            seed_offset=plan.shards_of_worker(self._rank).start + stage,
            total_num_processes=plan.shards,
            worker_info=None,
        )
        check_environments(env, section, key=f"env.{mode}")
        if self.asynchrony.skip.frames:
            draw_last_only(env)
        return env
