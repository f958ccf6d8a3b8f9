"""Environments of one shard, as the env loop sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from rlinf_async.hosts.resets import Turns
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

Episodes = list[dict[str, torch.Tensor]]
Observation = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ShardOutput:
    """What B environments showed after a decision, or at the start of a rollout."""

    observation: Observation
    """What the policy sees next; after a reset, the first of the new episode."""
    final_observation: Observation | None = None
    """The last of the episodes that have been reset just now, for all environments; None if none was."""
    rewards: torch.Tensor
    """[B], summed over the steps of the decision; zeros at the start."""
    ended: torch.Tensor
    """[B] bool: the episode has ended in this decision or, where nothing resets it, in an earlier one."""
    truncated: torch.Tensor
    """[B] bool: the last step of the decision has cut the episode off, which had not come to its end."""
    episodes: dict[str, torch.Tensor] = field(default_factory=dict)
    """Statistics of the episodes, by name."""


Rebuild = Callable[[], Any]
"""Closes the environments of a stage, and gives others; called in the thread of the shard."""

Renew = Callable[[int], Any]
"""As `Rebuild`, at the checkpoint after the step that it is given."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Environments that step together in a thread of their own, and how they were built."""

    env: Any
    section: Mapping[str, Any]
    """The `env` section of the config that `env` was built from."""
    size: int
    horizon: int
    """Decisions in one rollout."""
    simulators: SimulatorThread
    rebuild: Rebuild


class _Shard:
    """What a shard for training and one for evaluation have in common."""

    def __init__(self, stage: Stage) -> None:
        self._env, self._simulators, self._rebuild = stage.env, stage.simulators, stage.rebuild
        self._auto_reset = bool(stage.section["auto_reset"])
        self.size, self.horizon = stage.size, stage.horizon


class TrainShard(_Shard):
    """Training environments of one stage; fills `loops.ports.ShardEnv`."""

    def __init__(
        self, stage: Stage, *, renew: Renew, busy: BusyMeter, number: int, turns: Turns | None = None
    ) -> None:
        """`number`: of the stage in its env worker, under which `busy` counts it.

        With `turns`, other environments of the shard play the rollouts that `skip` leaves out.
        """
        super().__init__(stage)
        self._turns = turns
        self._renew, self._busy, self._number = renew, busy, number
        self._ignores_ends = bool(stage.section["ignore_terminations"])
        self._last: ShardOutput | None = None
        self._taken_on: tuple[int, int] | None = None

    async def start(self) -> ShardOutput:
        with self._busy.busy(self._number):
            return await self.reset()

    async def reset(self) -> ShardOutput:
        return await self._simulators.reset(self._start)

    def skip(self) -> None:
        assert self._turns is not None, "nobody else plays in this shard"
        self._turns.skip()

    async def step(self, answer: Mapping[str, Any]) -> ShardOutput:
        with self._busy.busy(self._number):
            return await self._simulators.step(lambda: self._step(answer["actions"]))

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        """What inference is asked with; the last observation of ended episodes is there for its value."""
        return {"obs": output.observation, "final_obs": output.final_observation}

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = (place, rollout)

    def finish(self) -> None:
        with self._simulators.guarding():
            self._env.update_reset_state_ids()

    async def restart(self) -> None:
        self._env = await self._simulators.build(self._rebuild)
        self._last = None

    async def renew(self, step: int) -> None:
        self._env = await self._simulators.build(lambda: self._renew(step))
        self._last = None

    def _start(self) -> ShardOutput:
        if self._auto_reset and self._last is not None:
            observation = self._last.observation  # the episodes go on
        else:
            self._env.is_start = True
            if self._taken_on is not None:
                self._env.take_on(*self._taken_on)
            if self._turns is not None:
                self._turns.begin(partial(getattr, self._env))
            observation, _ = self._env.reset()
        self._last = started(observation, self.size)
        return self._last

    def _step(self, actions: torch.Tensor) -> ShardOutput:
        observations, rewards, terminations, truncations, infos = self._env.chunk_step(actions)
        info, dones = _last(infos) or {}, terminations | truncations
        assert self._last is not None, "a shard is stepped before it is started"
        ended = dones.any(dim=1)
        self._last = ShardOutput(
            observation=_last(observations),
            final_observation=info.get("final_observation"),
            rewards=rewards.float().sum(dim=1).cpu(),
            ended=(ended if self._auto_reset else self._last.ended.to(ended) | ended).cpu(),
            truncated=(truncations[:, -1] & ~terminations.any(dim=1)).cpu(),
            episodes=self._episodes(info, dones, truncations),
        )
        return self._last

    def _episodes(
        self, info: Mapping[str, Any], dones: torch.Tensor, truncations: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Statistics of what has ended, where episodes begin anew by themselves; else of what there is."""
        if self._auto_reset:
            final = info.get("final_info") or {}
            return _chosen(final.get("episode"), dones[:, -1]) if dones.any() else {}
        if self._ignores_ends and not truncations[:, -1].any():
            return {}
        return _chosen(info.get("episode"), None)


class EvalShard(_Shard):
    """Evaluation environments of one stage; every episode counts once, when it ends."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._observation: Observation | None = None
        self._ended = torch.zeros(stage.size, dtype=torch.bool)
        self.episodes: Episodes = []
        self._complete = 0

    async def start(self) -> Observation:
        return await self._simulators.reset(self._start)

    async def step(self, answer: Mapping[str, Any]) -> Observation:
        return await self._simulators.step(lambda: self._step(answer["actions"]))

    def observation(self, output: Observation) -> dict[str, Any]:
        return {"obs": output, "final_obs": None}

    def finish(self) -> None:
        if not self._auto_reset:
            with self._simulators.guarding():
                self._env.update_reset_state_ids()
        self._complete = len(self.episodes)

    async def restart(self) -> None:
        """The episodes of the rollout that has failed are forgotten: it is run again."""
        self._env = await self._simulators.build(self._rebuild)
        self._observation = None
        del self.episodes[self._complete :]

    def _start(self) -> Observation:
        if self._auto_reset and self._observation is not None:
            return self._observation
        self._env.is_start = True
        self._ended = torch.zeros(self.size, dtype=torch.bool)
        self._observation, _ = self._env.reset()
        return self._observation

    def _step(self, actions: torch.Tensor) -> Observation:
        observations, _, terminations, truncations, infos = self._env.chunk_step(actions)
        at_end = (terminations | truncations)[:, -1].cpu()
        new = at_end if self._auto_reset else at_end & ~self._ended
        self._ended = self._ended | at_end
        info = _last(infos) or {}
        if new.any():
            statistics = (info.get("final_info") or info).get("episode")
            self.episodes.append(_chosen(statistics, new))
        self._observation = _last(observations)
        return self._observation


def started(observation: Observation, size: int) -> ShardOutput:
    """What a rollout of `size` environments begins with."""
    none = torch.zeros(size, dtype=torch.bool)
    return ShardOutput(observation=observation, rewards=torch.zeros(size), ended=none, truncated=none.clone())


def _last(values: object) -> Any:
    """What stands after the last step: environments may show all steps of a decision, or the last one."""
    if isinstance(values, list | tuple):
        return values[-1] if values else None
    return values


def _chosen(statistics: Mapping[str, Any] | None, where: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Statistics [B] of the environments `where` (None: of all), on the CPU."""
    tensors = {name: torch.as_tensor(value).cpu() for name, value in (statistics or {}).items()}
    return tensors if where is None else {name: value[where.cpu()] for name, value in tensors.items()}
