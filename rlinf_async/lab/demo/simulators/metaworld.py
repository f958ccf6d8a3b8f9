"""Meta-World as a batch of environments, in this process or in several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_async.lab.demo.simulators.camera import RenderSettings
from rlinf_async.lab.demo.simulators.child_process import ChildProcess
from rlinf_async.lab.demo.simulators.metaworld_task import ACTION_DIM, MetaWorldShard, TaskSettings
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats


@dataclass(frozen=True)
class Observation:
    """The inputs of the policy: float32 states [envs, 39] and uint8 images [envs, size, size, 3] or None."""

    states: np.ndarray
    images: np.ndarray | None


@dataclass(frozen=True)
class ChunkOutcome:
    """The outcome of a chunk of decisions, with the observation after the last decision.

    rewards (float32), successes and truncations (bool) are [envs, decisions]; lengths (int) is [envs],
    the decisions of each episode so far. After the end of its episode an environment stands still: its
    reward is 0, and its flags and length stay.
    """

    observation: Observation
    rewards: np.ndarray
    successes: np.ndarray
    truncations: np.ndarray
    lengths: np.ndarray


class MetaWorldBatch:
    """`num_envs` simulators of one task, deterministic given `seed`.

    The k-th episodes of the `group_size` consecutive members of a group have the same initial state and
    the same goal. With `processes=0` the simulators run in the calling thread; otherwise each of the
    `processes` children holds an equal share, and all step at the same time. An instance must be used
    by one thread only.

    `seed` may be a tuple, so that a caller can separate streams (run seed, train or eval). `first` is the
    number of the first environment in the run: an environment has the same episodes in every batch.
    """

    def __init__(
        self,
        settings: TaskSettings,
        num_envs: int,
        *,
        first: int = 0,
        group_size: int = 1,
        seed: int | Sequence[int] = 0,
        processes: int = 0,
        render: RenderSettings | None = None,
        obs_stats: ObservationStats | None = None,
    ) -> None:
        if num_envs < 1 or num_envs % group_size:
            raise ValueError(f"num_envs={num_envs} must be a positive multiple of group_size={group_size}")
        if first < 0 or first % group_size:
            raise ValueError(f"first={first} must be a multiple of group_size={group_size}")
        if processes < 0 or num_envs % max(processes, 1):
            raise ValueError(f"num_envs={num_envs} cannot be divided among processes={processes}")
        self.num_envs = num_envs
        self.group_size = group_size
        self._first = first
        self._seed = tuple(seed) if isinstance(seed, Sequence) else (seed,)
        self._stats = obs_stats
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        share = num_envs // max(processes, 1)
        self._slices = [slice(start, start + share) for start in range(0, num_envs, share)]
        if processes:
            path = f"{MetaWorldShard.__module__}:{MetaWorldShard.__name__}"
            self._shards: list[Any] = [ChildProcess(path, settings, share, render) for _ in range(processes)]
        else:
            self._shards = [_Inline(MetaWorldShard(settings, share, render))]

    @property
    def pids(self) -> list[int]:
        """The pids of the child processes, in the order of their environments."""
        return [shard.pid for shard in self._shards if isinstance(shard, ChildProcess)]

    def reset(self, indices: np.ndarray | None = None) -> Observation:
        """Start the next episode of the environments at `indices` (all by default).

        Returns:
            The observation of all environments, also of those that were not reset.
        """
        mask = np.zeros(self.num_envs, dtype=bool)
        mask[np.arange(self.num_envs) if indices is None else indices] = True
        seeds = [self._episode_seed(index) if mask[index] else 0 for index in range(self.num_envs)]
        self._episodes[mask] += 1
        for shard, part in zip(self._shards, self._slices, strict=True):
            own = np.flatnonzero(mask[part])
            shard.submit("reset", own, np.array(seeds[part])[own])
        states, images = zip(*(shard.result() for shard in self._shards), strict=True)
        return self._observation(states, images)

    def rewind(self) -> None:
        """Make the next reset start the very first episode again, for repeatable evaluation."""
        self._episodes[:] = 0

    def skip(self, episodes: int) -> None:
        """Skip the next `episodes` episodes of all environments."""
        self._episodes += episodes

    def take_on(self, first: int, episode: int) -> None:
        """Let the next reset begin episode number `episode`, from 0, of the environments from `first` on."""
        self._first = first
        self._episodes[:] = episode

    def abort(self, reason: str) -> bool:
        """End the child processes that have not answered; may be called from any thread.

        The call that waits for them raises `SimulatorDied` with `reason` and their stacks.

        Returns:
            True if a child process was ended.
        """
        silent = [shard for shard in self._shards if isinstance(shard, ChildProcess) and shard.busy]
        for shard in silent:
            shard.abort(reason)
        return bool(silent)

    def step(self, actions: np.ndarray) -> ChunkOutcome:
        """Take `actions` [envs, decisions, 4], clipped to [-1, 1], in turn."""
        if actions.ndim != 3 or actions.shape[0] != self.num_envs or actions.shape[2] != ACTION_DIM:
            raise ValueError(
                f"actions must be [{self.num_envs}, decisions, {ACTION_DIM}], got {actions.shape}"
            )
        for shard, part in zip(self._shards, self._slices, strict=True):
            shard.submit("step", actions[part])
        states, images, *outcome = zip(*(shard.result() for shard in self._shards), strict=True)
        rewards, successes, truncations, lengths = (np.concatenate(parts) for parts in outcome)
        observation = self._observation(states, images)
        return ChunkOutcome(observation, rewards.astype(np.float32), successes, truncations, lengths)

    def close(self) -> None:
        """Free the simulators, and end the child processes in order."""
        for shard in self._shards:
            shard.close()

    def _episode_seed(self, index: int) -> int:
        group = (self._first + index) // self.group_size
        key = (*self._seed, group, int(self._episodes[index]))
        return int(np.random.SeedSequence(key).generate_state(1)[0])

    def _observation(self, states: Sequence[np.ndarray], images: Sequence[Any]) -> Observation:
        joined = np.concatenate(states)
        scaled = joined.astype(np.float32) if self._stats is None else self._stats.normalise(joined)
        return Observation(scaled, None if images[0] is None else np.concatenate(images))


class _Inline:
    """A shard of the calling thread behind the interface of ChildProcess."""

    def __init__(self, shard: MetaWorldShard) -> None:
        self._shard = shard
        self._answer: Any = None

    def submit(self, method: str, *args: object) -> None:
        self._answer = getattr(self._shard, method)(*args)

    def result(self) -> Any:
        return self._answer

    def close(self) -> None:
        self._shard.close()
