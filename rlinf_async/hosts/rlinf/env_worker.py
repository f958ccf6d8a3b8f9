"""RLinf's env worker, with a separate loop for every environment shard."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.core.sharding import simulators_apart
from rlinf_async.core.tensors import Episodes
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.playing import draw_last_only
from rlinf_async.hosts.kit.rebuilds import Rebuilds, start_again
from rlinf_async.hosts.rlinf.borrowed import EnvWorker
from rlinf_async.hosts.rlinf.compat import rendering_on_own_gpu
from rlinf_async.hosts.rlinf.env_shard import EvalShard, TrainShard, env_attribute
from rlinf_async.hosts.rlinf.episode_starts import Stages, with_own_chance, with_stock_scenes
from rlinf_async.hosts.rlinf.known_config import StepConfig
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.skipped_work import watcher, with_last_frames
from rlinf_async.hosts.rlinf.trajectory import ShardRecorder
from rlinf_async.hosts.rlinf.worker_process import WRONG_RUNNER, PluginWorker, async_config
from rlinf_async.loops.foreign import let_go
from rlinf_async.ray_runtime.handles import Handle, RequestChannels
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker, each

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.rewards import RewardQueue, ShardRewards


class ShardedEnvWorker(PluginWorker, ShardWorker, EnvWorker):
    """Steps several independent shards; a shard is one of RLinf's stages, with its own thread."""

    restart_group = "env"
    """Ray starts this worker again when its process dies, if the run may restart this group; see `hooks`."""
    stage_num: int
    """The shards of this worker, which RLinf calls stages."""
    cfg, model_cfg = StepConfig(), StepConfig()

    def __init__(self, cfg: DictConfig) -> None:
        asynchrony = async_config(cfg)
        # Both as in RLinf's own loop, before this class changes them.
        self._stock_stages, self._first_seed = int(cfg.rollout.pipeline_stage_num), cfg.env.train.get("seed")
        # Before RLinf's `__init__`, which reads `stage_num` and the sizes of stages from this key.
        if asynchrony.rollout.enabled and asynchrony.rollout.shards != "auto":
            with open_dict(
                cfg
            ):  # the process's own copy; with a reward model, RLinf requires 1 in the driver's
                cfg.rollout.pipeline_stage_num = asynchrony.rollout.shards
        super().__init__(cfg)
        self.reward_workers: Sequence[Handle] = ()
        self._reward_queues: dict[int, RewardQueue] = {}
        self._joined = 1
        """The number of shards of RLinf's `__init__` that are joined in each present shard."""
        self._makers: dict[str, tuple[Any, DictConfig, int]] = {}
        self.first_observations: dict[int, Any] = {}
        self._rebuilds = Rebuilds()
        self.start_shards(asynchrony, rank=self._rank, stages=self.stage_num)
        self.eval_rollouts = int(OmegaConf.select(cfg, "env.eval.rollout_epoch") or 1)

    async def run_shards(
        self, settings: RLinfSettings, requests: RequestChannels, coordinator: Handle
    ) -> None:
        """Run the shards as on every host; reward workers score their observations, if the run has a reward
        model.
        """
        self.reward_workers = settings.reward_workers
        await super().run_shards(settings, requests, coordinator)

    def train_shard(self, stage: int) -> TrainShard:
        simulators = self.simulators("train", stage)
        say = partial(self.remark, what="odd environments")
        return TrainShard(
            self,
            stage,
            simulators,
            self._busy,
            rewards=self._rewards(simulators.shard),
            waits_for_rewards=not self.asynchrony.rollout.enabled,
            skips_ended=self.skips_ended,
            say_endless=None if self._rank or stage else say,
        )

    def _rewards(self, shard: int) -> ShardRewards | None:
        """Return the rewards of a shard; shards are divided evenly over the reward workers."""
        if not self.reward_workers:
            return None
        # Imported here, as few runs have a reward model.
        from rlinf_async.hosts.rlinf.rewards import ShardRewards

        queue = self._reward_queue(shard % len(self.reward_workers))
        return ShardRewards(self.cfg.reward, queue, self.envs_per_shard("train"))

    def _reward_queue(self, rank: int) -> RewardQueue:
        """Return the queue of this env worker for a reward worker."""
        from rlinf_async.hosts.rlinf.rewards import RewardQueue, RewardWorker

        if rank not in self._reward_queues:
            deadline_s = self.asynchrony.advanced.deadline_s
            worker = RewardWorker(rank=rank, handle=self.reward_workers[rank], deadline_s=deadline_s)
            # As in RLinf's own loop, where a reward worker scores its part of all environments of a stage.
            most = int(self.cfg.env.train.total_num_envs) // (self._stock_stages * len(self.reward_workers))
            self._reward_queues[rank] = RewardQueue(worker, most_environments=most)
        return self._reward_queues[rank]

    def eval_shard(self, stage: int) -> EvalShard:
        skips_ended = self.asynchrony.skip.ended
        return EvalShard(self, stage, self.simulators("eval", stage), skips_ended=skips_ended)

    def aborting(self, env: Any) -> Callable[[str], bool] | None:
        return env_attribute(env, "abort")

    def recorder(
        self, settings: RLinfSettings, stage: int, ticket: Ticket, episodes: Episodes
    ) -> ShardRecorder:
        return ShardRecorder(ticket, settings=settings, cfg=self.cfg, episodes=episodes)

    def envs_per_shard(self, mode: str) -> int:
        """Return the number of environments that RLinf had built for each stage."""
        return self._makers[mode][2]

    def environments(self, mode: str) -> Sequence[Any]:
        return self.env_list if mode == "train" else self.eval_env_list

    def _setup_env_and_wrappers(
        self, env_cls: Any, env_cfg: DictConfig, num_envs_per_stage: int
    ) -> list[Any]:
        num_envs_per_stage *= self._joined
        # RLinf builds training environments first. If `env.eval` is `${env.train}` both have the same
        # section, so that the section does not determine the mode.
        none_yet = "train" not in self._makers and not self.cfg.runner.get("only_eval", False)
        mode = "train" if none_yet and env_cfg is self.cfg.env.get("train") else "eval"
        env_cls = rendering_on_own_gpu(env_cls, env_type=env_cfg.env_type, rank=self._rank)
        several = self.stage_num > 1
        env_cls = with_own_chance(env_cls, env_type=env_cfg.env_type, several=several)
        if mode == "train" and (stages := self._stages(num_envs_per_stage)) is not None:
            env_cls = with_stock_scenes(env_cls, env_cfg, stages)
        if self.asynchrony.skip.frames and watcher(env_cfg) is None:
            env_cls = drawing_last_only(with_last_frames(env_cls, env_cfg))
        self._makers[mode] = (env_cls, env_cfg, num_envs_per_stage)
        envs: list[Any] = []

        def build(*, seed_offset: int, **kwargs: Any) -> Any:
            def build_stage(stage: int) -> Any:
                # RLinf's offset is rank * stage_num + stage; its first call, which builds all stages, is for
                # stage 0.
                return env_cls(seed_offset=seed_offset + stage, **kwargs)

            # RLinf builds one stage after the other: the first call builds all, each in its thread.
            if not envs:
                envs.extend(self.in_threads(mode, build_stage, in_processes=self._in_own_processes))
            return envs[seed_offset % self.stage_num]

        # Of every stage: either none was rebuilt, or all of them are.
        section = self._rebuilds.seeded(mode, 0, env_cfg)
        return super()._setup_env_and_wrappers(build, section, num_envs_per_stage)

    def _stages(self, shard_size: int) -> Stages | None:
        """Return the stages of RLinf's own loop; None if no shard is a part of one, or without a seed."""
        parts, rest = divmod(self.stage_num, self._stock_stages)
        if rest or self._first_seed is None:
            return None
        size = shard_size * parts
        count = int(self.cfg.env.train.total_num_envs) // size
        shared_scene = self.asynchrony.advanced.shared_group_scene
        return Stages(count=count, size=size, seed=int(self._first_seed), shared_scene=shared_scene)

    def init_again(self) -> None:
        """Run RLinf's `init_worker` in a replacement of a process that died, with another seed for
        training.
        """
        start_again(self.cfg.env.train, generation=self.generation)
        self._init_alone()

    def build_anew(self, settings: RLinfSettings) -> None:
        """Build the environments of other shards, with another seed for training."""
        stages = settings.plan.shards_per_worker
        self._joined *= self.stage_num // stages
        with open_dict(self.cfg):  # the process's own copy
            self.cfg.rollout.pipeline_stage_num = stages
        self.stage_num = stages
        self._makers.clear()
        for mode in ("train", "eval"):
            self._rebuilds.count_all(mode, stages)
        self._init_alone()

    def _init_alone(self) -> None:
        """Run RLinf's `init_worker` without its barrier of all env workers, which the others have passed."""
        # Set on the instance, so that deleting it restores RLinf's method.
        self.broadcast = lambda *_, **__: None
        try:
            self.init_worker()
        finally:
            del self.broadcast

    def rebuild(self, mode: str, stage: int) -> None:
        """Close the environments of a stage and build new ones, with their wrappers, in the stage's
        thread.
        """
        envs: list[Any] = self.env_list if mode == "train" else self.eval_env_list
        let_go(lambda: envs[stage].close())
        env_cls, env_cfg, num_envs = self._makers[mode]
        self._rebuilds.count(mode, stage)
        env_cfg = self._rebuilds.seeded(mode, stage, env_cfg)

        def build(*, seed_offset: int, total_num_processes: int, **kwargs: Any) -> Any:
            # Both numbers assume one stage per worker; see `alone`.
            place = seed_offset * self.stage_num + stage
            total = total_num_processes * self.stage_num
            return env_cls(seed_offset=place, total_num_processes=total, **kwargs)

        # RLinf's method builds and wraps the environments of all stages of a worker: this copy has one stage.
        alone = copy.copy(self)
        alone.stage_num = 1
        # Not our own override, which would build every stage and replace `_makers`.
        (envs[stage],) = super(ShardedEnvWorker, alone)._setup_env_and_wrappers(build, env_cfg, num_envs)
        # With `auto_reset` a rollout begins with the last observation, which new environments do not have
        # yet.
        if mode == "train" and self.cfg.env.train.auto_reset:
            self.first_observations[stage], _ = envs[stage].reset()

    def renew(self, stage: int, step: int) -> None:
        """Rebuild the training environments of a stage, at the checkpoint after `step`."""
        with self._rebuilds.renewing(stage, step, in_processes=self._in_own_processes):
            self.rebuild("train", stage)

    @property
    def _in_own_processes(self) -> bool:
        """True if every simulator has its own process, so that shards can be built at the same time."""
        return simulators_apart(self.cfg.env.train)

    def _init_env(self) -> None:
        # As in the base class, but with each shard in its thread.
        if self.cfg.env.train.auto_reset:
            resets = self.in_threads(
                "train",
                lambda stage: self.env_list[stage].reset(),
                in_processes=self._in_own_processes,
                doing="be reset",
            )
            # Instead of RLinf's `last_obs_list`, a list in the order of its loop.
            self.first_observations |= {stage: observation for stage, (observation, _) in enumerate(resets)}
        # After the resets, which need the simulators on their accelerator.
        if self._leaves("train") and self.cfg.env.train.get("enable_init_offload", True):
            each(self._offloads("train"), in_processes=self._in_own_processes)
        if self._leaves("eval"):
            each(self._offloads("eval"), in_processes=self._in_own_processes)

    def _leaves(self, mode: str) -> bool:
        """Return True if RLinf's config offloads the simulators of a mode."""
        return bool(self.environments(mode)) and bool(self.cfg.env[mode].get("enable_offload", False))

    def _offloads(self, mode: str) -> list[Callable[[], Callable[[], Any]]]:
        return [
            partial(self.simulators(mode, stage).begin, env_attribute(env, "offload"), doing="offload")
            for stage, env in enumerate(self.environments(mode))
        ]

    async def leave(self) -> None:
        """Offload the training simulators, if RLinf's config says so."""
        if self._leaves("train"):
            await self._offload("train")

    async def evaluate_shards(
        self, settings: RLinfSettings, requests: RequestChannels
    ) -> dict[str, torch.Tensor]:
        """Evaluate as on every host; then offload the evaluation simulators, if RLinf's config says so."""
        results = await super().evaluate_shards(settings, requests)
        if self._leaves("eval"):
            await self._offload("eval")
        return results

    async def _offload(self, mode: str) -> None:
        offload = partial(each, self._offloads(mode), in_processes=self._in_own_processes)
        await asyncio.get_running_loop().run_in_executor(None, offload)

    async def interact(self, *_: object, **__: object) -> None:
        """Raise an error, as RLinf's own loop must not run here."""
        raise RuntimeError(WRONG_RUNNER)


def drawing_last_only(env_cls: Callable[..., Any]) -> Callable[..., Any]:
    """Return a builder for environments of `env_cls` that skip unused frames, if they can."""

    def build(**options: Any) -> Any:
        env = env_cls(**options)
        draw_last_only(env)
        return env

    return build
