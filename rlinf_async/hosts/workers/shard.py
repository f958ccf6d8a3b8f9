"""Environments of one shard, as the env loop sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from rlinf_async.hosts.contract import Contract, Step, shown
from rlinf_async.loops.finite import check_shown, not_finite
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

T = TypeVar("T")

Episodes = list[dict[str, torch.Tensor]]
Observation = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ShardOutput:
    """Outputs of B environments after a decision, or at the start of a rollout."""

    observation: Observation
    """The next observation of the policy; after a reset, the first of the new episode."""
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
    """The common part of a shard for training and one for evaluation."""

    def __init__(self, stage: Stage) -> None:
        self._env, self._simulators, self._rebuild = stage.env, stage.simulators, stage.rebuild
        self._auto_reset = bool(stage.section["auto_reset"])
        self.size, self.horizon = stage.size, stage.horizon
        self._contract = Contract(stage.simulators.shard, stage.size)

    def _reset(self) -> Observation:
        """Return the observation after a reset; called in the thread of the environments."""
        observation, _ = self._contract.of(self._env).reset(self._env.reset())
        return observation

    def _decide(self, actions: torch.Tensor) -> Step:
        """Return the results of a decision; called in the thread of the environments."""
        # Copied: what the policy has answered may be shared, and environments may write into what they get.
        given = self._env.chunk_step(actions.clone())
        return self._contract.of(self._env).step(given, steps=actions.shape[1])

    def _bad(self, fields: Mapping[str, Any]) -> list[str]:
        """Return the sentences about numbers that are not finite."""
        return not_finite(self._simulators.advanced, fields)

    def _finite(self, output: T, bad: list[str]) -> T:
        """The output, unless something `bad` has been shown."""
        check_shown(self._simulators.advanced, bad)
        return output

    async def _build(self, build: Callable[[], Any]) -> None:
        """Others take the place of the environments."""
        # Other environments may show other fields, if those before never completed a rollout.
        self._contract.forget()
        self._env = await self._simulators.build(build)


class TrainShard(_Shard):
    """Training environments of one stage; fills `loops.ports.ShardEnv`."""

    def __init__(self, stage: Stage, *, renew: Renew, busy: BusyMeter, number: int) -> None:
        """`number`: of the stage in its env worker, under which `busy` counts it."""
        super().__init__(stage)
        self._renew, self._busy, self._number = renew, busy, number
        self._ignores_ends = bool(stage.section["ignore_terminations"])
        self._last: ShardOutput | None = None
        self._taken_on: tuple[int, int] | None = None

    async def start(self) -> ShardOutput:
        with self._busy.busy(self._number):
            return self._finite(*await self._simulators.reset(self._start))

    async def step(self, answer: Mapping[str, Any]) -> ShardOutput:
        with self._busy.busy(self._number):
            return self._finite(*await self._simulators.step(lambda: self._step(answer["actions"])))

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        """Return the payload for inference; the last observation of ended episodes is there for its value."""
        return {"obs": output.observation, "final_obs": output.final_observation}

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = (place, rollout)

    async def finish(self) -> None:
        self._contract.prove()
        await self._simulators.finish(lambda: self._env.update_reset_state_ids())

    async def restart(self) -> None:
        await self._build(self._rebuild)
        self._last = None

    async def renew(self, step: int) -> None:
        await self._build(lambda: self._renew(step))
        self._last = None

    def _start(self) -> tuple[ShardOutput, list[str]]:
        if self._auto_reset and self._last is not None:
            observation = self._last.observation  # the episodes go on
        else:
            self._env.is_start = True
            if self._taken_on is not None:
                self._env.take_on(*self._taken_on)
            observation = self._reset()
        self._last = started(observation, self.size)
        return self._last, self._bad(shown(observation))

    def _step(self, actions: torch.Tensor) -> tuple[ShardOutput, list[str]]:
        step = self._decide(actions)
        assert self._last is not None, "a shard is stepped before it is started"
        ended = step.dones.any(dim=1)
        self._last = ShardOutput(
            observation=step.observation,
            final_observation=step.info.get("final_observation"),
            rewards=step.rewards.float().sum(dim=1),
            ended=ended if self._auto_reset else self._last.ended | ended,
            truncated=step.truncations[:, -1] & ~step.terminations.any(dim=1),
            episodes=self._episodes(step),
        )
        return self._last, self._bad(step.shown())

    def _episodes(self, step: Step) -> dict[str, torch.Tensor]:
        """Return the statistics of ended episodes, where environments reset themselves; else of all
        episodes.
        """
        if self._auto_reset:
            final = step.info.get("final_info") or {}
            return _chosen(final.get("episode"), step.dones[:, -1]) if step.dones.any() else {}
        if self._ignores_ends and not step.truncations[:, -1].any():
            return {}
        return _chosen(step.info.get("episode"), None)


class EvalShard(_Shard):
    """Evaluation environments of one stage; every episode counts once, when it ends."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._observation: Observation | None = None
        self._ended = torch.zeros(stage.size, dtype=torch.bool)
        self.episodes: Episodes = []
        self._complete = 0

    async def start(self) -> Observation:
        return self._finite(*await self._simulators.reset(self._start))

    async def step(self, answer: Mapping[str, Any]) -> Observation:
        return self._finite(*await self._simulators.step(lambda: self._step(answer["actions"])))

    def observation(self, output: Observation) -> dict[str, Any]:
        return {"obs": output, "final_obs": None}

    async def finish(self) -> None:
        self._contract.prove()
        if not self._auto_reset:
            await self._simulators.finish(lambda: self._env.update_reset_state_ids())
        self._complete = len(self.episodes)

    async def restart(self) -> None:
        """The episodes of the rollout that has failed are forgotten: it is run again."""
        await self._build(self._rebuild)
        self._observation = None
        del self.episodes[self._complete :]

    def _start(self) -> tuple[Observation, list[str]]:
        if self._auto_reset and self._observation is not None:
            return self._observation, []
        self._env.is_start = True
        self._ended = torch.zeros(self.size, dtype=torch.bool)
        self._observation = self._reset()
        return self._observation, self._bad(shown(self._observation))

    def _step(self, actions: torch.Tensor) -> tuple[Observation, list[str]]:
        step = self._decide(actions)
        at_end = step.dones[:, -1]
        new = at_end if self._auto_reset else at_end & ~self._ended
        self._ended = self._ended | at_end
        if new.any():
            statistics = (step.info.get("final_info") or step.info).get("episode")
            self.episodes.append(_chosen(statistics, new))
        self._observation = step.observation
        return step.observation, self._bad(shown(step.observation))


def started(observation: Observation, size: int) -> ShardOutput:
    """Return the output with which a rollout of `size` environments begins."""
    none = torch.zeros(size, dtype=torch.bool)
    return ShardOutput(
        observation=observation,
        rewards=torch.zeros(size, dtype=torch.float32),
        ended=none,
        truncated=none.clone(),
    )


def _chosen(statistics: Mapping[str, Any] | None, where: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Statistics [B] of the environments `where` (None: of all)."""
    tensors = dict(statistics or {})
    return tensors if where is None else {name: value[where] for name, value in tensors.items()}
