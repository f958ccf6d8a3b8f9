"""One environment shard of an RLinf env worker, as the env loop sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rlinf.envs.utils import get_env_attr

from rlinf_async.hosts.resets import Turns
from rlinf_async.hosts.rlinf.compat import EnvOutput, interact_step, wait_env_delay
from rlinf_async.hosts.tasks import METHOD
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter


@dataclass(frozen=True)
class ShardOutput:
    """What the environments showed, with the episode statistics that came with it."""

    env: EnvOutput
    info: dict[str, torch.Tensor] = field(default_factory=dict)


class TrainShard:
    """Training environments of one stage; fills `loops.ports.ShardEnv` with RLinf's own stepping."""

    def __init__(
        self,
        worker: Any,
        stage: int,
        simulators: SimulatorThread,
        busy: BusyMeter,
        *,
        turns: Turns | None = None,
    ) -> None:
        """With `turns`, other environments of the shard play the rollouts that `skip` leaves out; those of
        them that are spare have a stage beyond those that `busy` counts."""
        self._worker = worker
        self._stage = stage
        self._simulators = simulators
        self._busy = partial(busy.busy, stage % busy.width)
        self._turns = turns
        self._cfg = worker.cfg.env.train
        self._last: EnvOutput | None = None
        self._taken_on: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        return self._worker.train_num_envs_per_stage

    @property
    def horizon(self) -> int:
        return self._worker.n_train_chunk_steps

    @property
    def _env(self) -> Any:
        return self._worker.env_list[self._stage]

    async def start(self) -> ShardOutput:
        with self._busy():
            return await self.reset()

    async def reset(self) -> ShardOutput:
        output = await self._simulators.reset(self._start)
        await wait_env_delay(self._worker, self._stage)
        return output

    def skip(self) -> None:
        assert self._turns is not None, "nobody else plays in this shard"
        self._turns.skip()

    async def step(self, answer: Any) -> ShardOutput:
        with self._busy():
            output = await self._simulators.step(lambda: self._step(answer))
            await wait_env_delay(self._worker, self._stage)
        return output

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        """What RLinf's rollout worker reads of an env output."""
        batch = output.env.to_dict()
        return {"obs": batch["obs"], "final_obs": batch["final_obs"]}

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = (place, rollout)

    def finish(self) -> None:
        with self._simulators.guarding():
            flush_video(self._env, self._cfg)
            self._env.update_reset_state_ids()

    async def restart(self) -> None:
        await self._simulators.build(lambda: self._worker.rebuild("train", self._stage))
        self._last = None

    async def renew(self, step: int) -> None:
        await self._simulators.build(lambda: self._worker.renew(self._stage, step))
        self._last = None

    def _start(self) -> ShardOutput:
        nothing_done = torch.zeros((self.size, self._worker.model_cfg.num_action_chunks), dtype=torch.bool)
        if self._cfg.auto_reset:
            intervened = self._worker.last_intervened_info_list[self._stage]
            last = self._last
            observation = self._worker.last_obs_list[self._stage] if last is None else last.obs
            if last is not None:
                intervened = (last.intervene_actions, last.intervene_flags)
            output = EnvOutput(
                obs=observation,
                dones=nothing_done,
                terminations=nothing_done.clone(),
                truncations=nothing_done.clone(),
                intervene_actions=intervened[0],
                intervene_flags=intervened[1],
            )
        else:
            self._env.is_start = True
            if self._taken_on is not None:
                get_env_attr(self._env, METHOD)(*self._taken_on)
            if self._turns is not None:
                self._turns.begin(partial(get_env_attr, self._env))
            observation, infos = self._env.reset()
            output = EnvOutput(
                obs=observation,
                final_obs=infos.get("final_observation"),
                dones=nothing_done,
                terminations=nothing_done.clone(),
                truncations=nothing_done.clone(),
            )
        return ShardOutput(output)

    def _step(self, answer: dict[str, Any]) -> ShardOutput:
        self._last, info = interact_step(self._worker, answer["actions"], self._stage)
        return ShardOutput(self._last, info)


class EvalShard:
    """Evaluation environments of one stage; collects their episode statistics."""

    def __init__(self, worker: Any, stage: int, simulators: SimulatorThread) -> None:
        self._worker = worker
        self._stage = stage
        self._simulators = simulators
        self._cfg = worker.cfg.env.eval
        self._last: EnvOutput | None = None
        self.episodes: list[dict[str, torch.Tensor]] = []
        self._complete = 0

    @property
    def _env(self) -> Any:
        return self._worker.eval_env_list[self._stage]

    @property
    def size(self) -> int:
        return self._worker.eval_num_envs_per_stage

    @property
    def horizon(self) -> int:
        return self._worker.n_eval_chunk_steps

    async def start(self) -> EnvOutput:
        return await self._simulators.reset(self._start)

    async def step(self, answer: dict[str, Any]) -> EnvOutput:
        return await self._simulators.step(lambda: self._step(answer))

    def observation(self, output: EnvOutput) -> dict[str, Any]:
        batch = output.to_dict()
        return {"obs": batch["obs"], "final_obs": None}

    def finish(self) -> None:
        with self._simulators.guarding():
            flush_video(self._env, self._cfg)
            if not self._cfg.auto_reset:
                self._env.update_reset_state_ids()
        self._complete = len(self.episodes)

    async def restart(self) -> None:
        """The episodes of the rollout that has failed are forgotten: it is run again."""
        await self._simulators.build(lambda: self._worker.rebuild("eval", self._stage))
        self._last = None
        del self.episodes[self._complete :]

    def _start(self) -> EnvOutput:
        if self._cfg.auto_reset and self._last is not None:
            return self._last
        self._env.is_start = True
        self._worker.eval_prev_done[self._stage] = torch.zeros(self.size, dtype=torch.bool)
        observation, _ = self._env.reset()
        return EnvOutput(obs=observation)

    def _step(self, answer: dict[str, Any]) -> EnvOutput:
        actions = answer["actions"].detach().cpu().numpy()
        self._last, info = self._worker.env_evaluate_step(actions, self._stage)
        if info:
            self.episodes.append(info)
        return self._last


def flush_video(env: Any, cfg: Any) -> None:
    """Write the video of a rollout, if there is one."""
    if cfg.video_cfg.save_video:
        flush = get_env_attr(env, "flush_video")
        if callable(flush):
            flush()
