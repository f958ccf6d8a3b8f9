"""Environments of one shard, as the env loop sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rlinf_async.hosts.contract import Step, finite_fields
from rlinf_async.hosts.kit import shard as kit
from rlinf_async.hosts.kit.playing import Playing, as_they_ended, let_play
from rlinf_async.hosts.kit.shard import Shown
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

if TYPE_CHECKING:
    from rlinf_async.hosts.kit.ends import Ends

Observation = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ShardOutput:
    """Outputs of B environments after a decision, or at the start of a rollout."""

    observation: Observation
    """The next observation of the policy; after a reset, the first of the new episode."""
    final_observation: Observation | None = None
    """The last observation of episodes that were just reset, for all environments; None if none was reset."""
    rewards: torch.Tensor
    """[B], summed over the steps of the decision up to the episode's end; zeros at the start."""
    ended: torch.Tensor
    """[B] bool: the episode ended in this decision or, without auto_reset, in an earlier one."""
    truncated: torch.Tensor
    """[B] bool: the episode was truncated before it terminated. With auto_reset, the value of its final
    observation is bootstrapped."""
    episodes: dict[str, torch.Tensor] = field(default_factory=dict)
    """Statistics of the episodes, by name."""
    playing: Playing | None = None
    """The environments of the next decision; None for all."""


Rebuild = Callable[[int | None], Any]
"""Closes the environments of a stage and returns new ones; with a step, those of the checkpoint after it.
Called in the shard's thread."""


@dataclass(kw_only=True)
class Stage:
    """Environments that are stepped together in their own thread, and the section they were built from."""

    env: Any
    """The present environments."""
    section: Mapping[str, Any]
    """The `env` section of the config that `env` was built from."""
    size: int
    horizon: int
    """Decisions in one rollout."""
    simulators: SimulatorThread
    rebuild: Rebuild

    @property
    def auto_reset(self) -> bool:
        return bool(self.section["auto_reset"])


def reset(shard: kit.Shard[Any], stage: Stage) -> Observation:
    """Return the observation after a reset; called in the thread of the environments."""
    observation, _ = shard.contract.of(stage.env).reset(stage.env.reset())
    return observation


def decide(shard: kit.Shard[Any], stage: Stage, actions: torch.Tensor) -> Step:
    """Return the results of a decision; called in the thread of the environments."""
    results = stage.env.chunk_step(actions)
    return shard.contract.of(stage.env).step(results, steps=actions.shape[1])


class TrainShard(kit.TrainShard[ShardOutput]):
    """Training environments of one stage."""

    def __init__(
        self,
        stage: Stage,
        *,
        busy: BusyMeter,
        number: int,
        skips_ended: bool = False,
        ends: Ends | None = None,
    ) -> None:
        """`number`: the stage's number in its env worker, for `busy`."""
        super().__init__(
            stage.simulators,
            busy=busy,
            number=number,
            ends=ends,
            size=stage.size,
            horizon=stage.horizon,
            skips_ended=skips_ended,
        )
        self._stage = stage
        self._auto_reset = stage.auto_reset
        self._ignores_ends = bool(stage.section["ignore_terminations"])

    def playing_at(self, output: ShardOutput) -> Playing | None:
        return output.playing

    def stand(self, playing: Playing | None) -> None:
        self.others_stand = self._skips_ended and let_play(self._stage.env, playing)

    def shown(self, output: ShardOutput) -> dict[str, Any]:
        """Return the payload for inference; final observations of ended episodes are sent for their
        values.
        """
        return {"obs": output.observation, "final_obs": output.final_observation}

    def begin(self) -> Shown[ShardOutput]:
        if self._auto_reset and self._last is not None:
            observation = self.contract.again(self._last.observation)  # the episodes go on
        else:
            self._stage.env.is_start = True
            if self._taken_on is not None:
                # docs/extending.md promises this moment: in the shard's thread, before the reset.
                self._stage.env.take_on(*self._taken_on)
            observation = reset(self, self._stage)
        self._last = started(observation, self.size)
        return self._last, finite_fields(observation)

    def act(self, actions: torch.Tensor) -> Shown[ShardOutput]:
        step = decide(self, self._stage, actions)
        assert self._last is not None, "a shard is stepped before it is started"
        ended, truncated = step.ended, step.cut
        if not self._auto_reset:
            # Without auto_reset an environment may report the end of its episode only once. A truncation
            # after the end does not count.
            truncated = self._last.truncated | (truncated & ~self._last.ended)
            ended = self._last.ended | ended
        episodes = self._episodes(step)
        if self._last.playing is not None:
            episodes = as_they_ended(episodes, self._last.episodes, over=self._last.ended)
        self._last = ShardOutput(
            observation=step.observation,
            final_observation=step.info.get("final_observation"),
            rewards=step.reward,
            ended=ended,
            truncated=truncated,
            episodes=episodes,
            playing=self.play_on(ended),
        )
        return self._last, step.finite_fields()

    def end(self) -> None:
        self._stage.env.update_reset_state_ids()

    def rebuild(self) -> None:
        self._stage.env = self._stage.rebuild(None)

    def rebuild_at(self, step: int) -> None:
        self._stage.env = self._stage.rebuild(step)

    def _episodes(self, step: Step) -> dict[str, torch.Tensor]:
        """Return the statistics of ended episodes with auto_reset, else of all episodes."""
        if self._auto_reset:
            final = step.info.get("final_info") or {}
            return chosen(final.get("episode"), step.ended) if step.ended.any() else {}
        if self._ignores_ends and not step.truncations.any():
            return {}
        return chosen(step.info.get("episode"), None)


def started(observation: Observation, size: int) -> ShardOutput:
    """Return the output with which a rollout of `size` environments begins."""
    none = torch.zeros(size, dtype=torch.bool)
    return ShardOutput(
        observation=observation,
        rewards=torch.zeros(size, dtype=torch.float32),
        ended=none,
        truncated=none.clone(),
    )


def chosen(statistics: Mapping[str, Any] | None, where: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the statistics [B] of the environments `where` (None: all)."""
    tensors = dict(statistics or {})
    return tensors if where is None else {name: value[where] for name, value in tensors.items()}
