"""One environment shard of an RLinf env worker, as the env loop sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from rlinf_async.hosts.contract import Contract, shown
from rlinf_async.hosts.rlinf.borrowed import OBSERVED
from rlinf_async.hosts.rlinf.compat import evaluate_step, interact_step
from rlinf_async.hosts.rlinf.rewards import ShardRewards
from rlinf_async.hosts.rlinf.trajectory import EnvStep
from rlinf_async.hosts.tasks import TAKE_ON_METHOD
from rlinf_async.loops.finite import check_shown, not_finite
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

T = TypeVar("T")
ENDS = ("dones", "terminations", "truncations")


@dataclass(frozen=True)
class ShardOutput:
    """The outputs of the environments, with the episode statistics that came with them."""

    env: EnvStep
    info: dict[str, torch.Tensor] = field(default_factory=dict)


class Bordered:
    """Environments as RLinf's env worker steps them: what they give has crossed a `Contract`."""

    def __init__(self, env: Any, contract: Contract, steps: int) -> None:
        """`steps`: of a decision."""
        self._env, self._contract, self._steps = env, contract.of(getattr(env, "unwrapped", env)), steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._contract.reset(self._env.reset())

    def chunk_step(self, actions: Any) -> tuple[Any, ...]:
        step = self._contract.step(self._env.chunk_step(actions), steps=self._steps)
        return [step.observation], step.rewards, step.terminations, step.truncations, [step.info]


class _Shard:
    """The common part of a shard for training and one for evaluation."""

    def __init__(self, worker: Any, stage: int, simulators: SimulatorThread, mode: str) -> None:
        self._worker = worker
        self._stage = stage
        self._simulators = simulators
        self._cfg = worker.cfg.env[mode]
        self._steps = int(worker.cfg.actor.model.num_action_chunks)
        self.size = worker.envs_per_shard(mode)
        self._contract = Contract(simulators.shard, self.size, fields=OBSERVED)

    @property
    def horizon(self) -> int:
        return int(self._cfg.max_steps_per_rollout_epoch) // self._steps

    def _bordered(self, env: Any) -> Bordered:
        return Bordered(env, self._contract, self._steps)

    def _bad(self, output: EnvStep) -> list[str]:
        """Return the sentences about observations and rewards that are not finite; called in the shard's
        thread.
        """
        fields = shown(output.obs, output.rewards, output.final_obs)
        return not_finite(self._simulators.advanced, fields)

    def _finite(self, output: T, bad: list[str]) -> T:
        """The output, unless something `bad` has been shown."""
        check_shown(self._simulators.advanced, bad)
        return output


class TrainShard(_Shard):
    """Training environments of one stage; fills `loops.ports.ShardEnv` with RLinf's own stepping."""

    def __init__(
        self,
        worker: Any,
        stage: int,
        simulators: SimulatorThread,
        busy: BusyMeter,
        *,
        rewards: ShardRewards | None = None,
    ) -> None:
        """`rewards` are a reward model's."""
        super().__init__(worker, stage, simulators, "train")
        self._busy = partial(busy.busy, stage)
        self._rewards = rewards
        self._last: EnvStep | None = None
        self._taken_on: tuple[int, int] | None = None

    @property
    def _env(self) -> Any:
        return self._worker.env_list[self._stage]

    async def start(self) -> ShardOutput:
        with self._busy():
            output = self._finite(*await self._simulators.reset(self._start))
            await self._delayed()
            return output

    async def step(self, answer: Any) -> ShardOutput:
        with self._busy():
            output = self._finite(*await self._simulators.step(lambda: self._step(answer)))
            await self._delayed()
        if self._rewards is not None:
            await self._rewards.add(output.env)
        return output

    async def _delayed(self) -> None:
        """Wait for as long as `env.delay_sampler` has drawn, where RLinf leaves the waiting to its worker."""
        wait = env_attribute(self._env, "wait_delay")
        if wait is not None:
            await wait()

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        """Return the fields of an env output that RLinf's rollout worker reads."""
        return {"obs": output.env.obs, "final_obs": output.env.final_obs}

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = (place, rollout)

    async def finish(self) -> None:
        self._contract.prove()
        await self._simulators.finish(self._finish)

    async def restart(self) -> None:
        self._contract.forget()
        await self._simulators.build(lambda: self._worker.rebuild("train", self._stage))
        # With `auto_reset` the next rollout begins from `last_obs_list`, which `rebuild` has filled.
        self._begin_anew()

    async def renew(self, step: int) -> None:
        self._contract.forget()
        await self._simulators.build(lambda: self._worker.renew(self._stage, step))
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing is known of these environments, which have been built just now."""
        self._last = None
        if self._rewards is not None:
            self._rewards.forget()

    def _finish(self) -> None:
        flush_video(self._env, self._cfg)
        self._env.update_reset_state_ids()

    def _start(self) -> tuple[ShardOutput, list[str]]:
        if self._cfg.auto_reset:
            last = self._last
            if last is None:
                first = self._worker.first_observations[self._stage]
                output = EnvStep(obs=self._contract.observation(first))
            else:
                output = EnvStep(
                    obs=last.obs,
                    intervene_actions=last.intervene_actions,
                    intervene_flags=last.intervene_flags,
                )
        else:
            self._env.is_start = True
            take_on = env_attribute(self._env, TAKE_ON_METHOD)
            # RLinf's own environments that may take on tasks draw theirs anew, and are told nothing.
            if self._taken_on is not None and take_on is not None:
                take_on(*self._taken_on)
            observation, infos = self._bordered(self._env).reset()
            output = EnvStep(obs=observation, final_obs=infos.get("final_observation"))
        for name in ENDS:
            setattr(output, name, torch.zeros((self.size, self._steps), dtype=torch.bool))
        return ShardOutput(output), self._bad(output)

    def _step(self, answer: dict[str, Any]) -> tuple[ShardOutput, list[str]]:
        # Copied: what the policy has answered may be shared, and environments may write into what they get.
        actions, env = answer["actions"].clone(), self._bordered(self._env)
        self._last, info = interact_step(self._worker, actions, self._stage, env)
        return ShardOutput(self._last, info), self._bad(self._last)


class EvalShard(_Shard):
    """Evaluation environments of one stage; collects their episode statistics."""

    def __init__(self, worker: Any, stage: int, simulators: SimulatorThread) -> None:
        super().__init__(worker, stage, simulators, "eval")
        self._last: EnvStep | None = None
        self.episodes: list[dict[str, torch.Tensor]] = []
        self._complete = 0

    @property
    def _env(self) -> Any:
        return self._worker.eval_env_list[self._stage]

    async def start(self) -> EnvStep:
        return self._finite(*await self._simulators.reset(self._start))

    async def step(self, answer: dict[str, Any]) -> EnvStep:
        return self._finite(*await self._simulators.step(lambda: self._step(answer)))

    def observation(self, output: EnvStep) -> dict[str, Any]:
        return {"obs": output.obs, "final_obs": None}

    async def finish(self) -> None:
        self._contract.prove()
        await self._simulators.finish(self._finish)
        self._complete = len(self.episodes)

    async def restart(self) -> None:
        """The episodes of the rollout that has failed are forgotten: it is run again."""
        self._contract.forget()
        await self._simulators.build(lambda: self._worker.rebuild("eval", self._stage))
        self._last = None
        del self.episodes[self._complete :]

    def _finish(self) -> None:
        flush_video(self._env, self._cfg)
        if not self._cfg.auto_reset:
            self._env.update_reset_state_ids()

    def _start(self) -> tuple[EnvStep, list[str]]:
        if self._cfg.auto_reset and self._last is not None:
            return self._last, []
        self._env.is_start = True
        self._worker.eval_prev_done[self._stage] = torch.zeros(self.size, dtype=torch.bool)
        observation, _ = self._bordered(self._env).reset()
        output = EnvStep(obs=observation)
        return output, self._bad(output)

    def _step(self, answer: dict[str, Any]) -> tuple[EnvStep, list[str]]:
        actions, env = answer["actions"].detach().cpu().clone().numpy(), self._bordered(self._env)
        self._last, info = evaluate_step(self._worker, actions, self._stage, env)
        if info:
            self.episodes.append(info)
        return self._last, self._bad(self._last)


def env_attribute(env: Any, name: str) -> Any:
    """What environments, or those that they wrap, have of this name; else None."""
    if not hasattr(env, "get_wrapper_attr"):
        return getattr(env, name, None)
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def flush_video(env: Any, cfg: Any) -> None:
    """Write the video of a rollout, if there is one."""
    if cfg.video_cfg.save_video:
        flush = env_attribute(env, "flush_video")
        if callable(flush):
            flush()
