"""Starts of episodes as in RLinf's own loop, whatever the division of the environments into shards.

ManiSkill draws its initial states as if it were alone in its process. A reset of ManiSkill seeds torch's
generator, draws, and restores the generator's state. That generator belongs to the process: shards in threads
of one env worker, and evaluation shards, would draw each other's numbers. Steps draw no numbers. RLinf's
other simulators that draw from a process-wide generator (robosuite, Meta-World, CALVIN: numpy's) have their
own processes.

LIBERO shows at each place of a batch the task and the scene of RLinf's own loop. A stage of RLinf draws tasks
and initial states once per rollout, for all of its environments, from a generator that `seed + stage` begins,
and seeds simulator `i` of its `n` with `(seed + stage) * n + i`. A recorded initial state of LIBERO holds
joint positions; the places of cabinets, stoves and racks follow from that last seed alone. A shard is a slice
of a stage, and a shard that draws for itself would see other tasks in other scenes: here it draws for the
whole stage, and keeps its slice. So neither the number of shards, nor the shard that plays a place, nor a
simulator that was built anew changes the start of an episode. With `env.train.auto_reset` the seeds of a
reset follow from the number of environments that end in one step, so that a part of a stage cannot know them;
such environments draw as RLinf's class has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any

import numpy as np
import torch

RESET_LOCK = RLock()
"""Held while ManiSkill is built or reset in this process."""


def with_own_chance(env_cls: type, *, env_type: str, several: bool) -> type:
    """Return a subclass of `env_cls` with resets that exclude each other in this process.

    Args:
        env_type: as `env.train.env_type`; classes other than ManiSkill's are returned unchanged.
        several: True if several training shards share the process: each then has its own random state for
            draws without a seed; else such draws use the process's generator, as in stock RLinf.
    """
    if env_type != "maniskill" or not isinstance(env_cls, type):
        return env_cls
    own = {"__module__": env_cls.__module__, "_draws_apart": several}
    return type(env_cls.__name__, (_OwnChance, env_cls), own)


class _OwnChance:
    """A mixin that comes before RLinf's class in the method resolution order."""

    _draws_apart: bool
    _states: tuple[torch.Tensor, ...] = ()

    def __init__(self, cfg: Any, num_envs: int, seed_offset: int, *args: Any, **kwargs: Any) -> None:
        self._first_seed = int(cfg.seed) + seed_offset  # as RLinf's `seed`
        with self._drawing():
            super().__init__(cfg, num_envs, seed_offset, *args, **kwargs)  # type: ignore[call-arg]

    def reset(self, **options: Any) -> Any:
        with self._drawing():
            return super().reset(**options)  # type: ignore[misc]

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Exclude other environments from drawing inside the block, and restore torch's generators after
        it.
        """
        with RESET_LOCK:
            if not self._draws_apart:
                yield
                return
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            with torch.random.fork_rng(devices):
                if self._states:
                    _put_back(self._states, devices)
                else:
                    torch.manual_seed(self._first_seed)
                yield
                self._states = (torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices))


def _put_back(states: tuple[torch.Tensor, ...], devices: list[int]) -> None:
    torch.set_rng_state(states[0])
    for state, device in zip(states[1:], devices, strict=True):
        torch.cuda.set_rng_state(state, device)


STAND_METHOD = "stand_at"
NEEDED_METHODS = (
    "_init_env",
    "_get_random_reset_state_ids",
    "get_reset_state_ids_all",
    "update_reset_state_ids",
)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The stages into which RLinf's own loop divides the environments of a run.

    Args:
        count: Stages of all env workers.
        size: Environments in one stage.
        seed: `env.train.seed` of the run; simulators that are built anew are given others.
        shared_scene: True if the members of a group start in the scene of the first of them.
    """

    count: int
    size: int
    seed: int
    shared_scene: bool = False

    def at(self, place: int, shard_size: int) -> tuple[int, slice]:
        """Return the stage of the shard at `place`, and the shard's part of the stage."""
        stage, first = divmod(place * shard_size, self.size)
        return stage, slice(first, first + shard_size)

    def scene_seeds(self, stage: int, group_size: int) -> list[int]:
        """Return the seed of each simulator of `stage` at a reset of all of them."""
        together = group_size if self.shared_scene else 1
        return [(self.seed + stage) * self.size + i - i % together for i in range(self.size)]


class StageDraws:
    """The tasks and initial states that RLinf's own class draws for one stage, rollout after rollout."""

    def __init__(self, env: Any, stages: Stages, stage: int) -> None:
        """`env`: an environment of RLinf's class; its simulators are not touched."""
        self._env, self._stages, self._stage = env, stages, stage
        self._begin()

    def _begin(self) -> None:
        self._rollout = -1
        stages, drawing = self._stages, copy.copy(self._env)
        drawing.seed_offset, drawing.total_num_processes = self._stage, stages.count
        drawing.num_envs, drawing.num_group = stages.size, stages.size // drawing.group_size
        # As RLinf's `__init__` begins them.
        drawing.seed = stages.seed + self._stage
        drawing._generator = np.random.default_rng(seed=drawing.seed)
        drawing._generator_ordered = np.random.default_rng(seed=0)
        drawing.start_idx = 0
        drawing.reset_state_ids_all = drawing.get_reset_state_ids_all()
        self._drawing = drawing

    def of(self, rollout: int) -> Any:
        """Return the `reset_state_ids` of `rollout`, from 0, one for each environment of the stage."""
        if rollout < self._rollout:
            self._begin()
        while self._rollout < rollout:
            self._next()
        return self._ids

    def _next(self) -> None:
        # RLinf draws for groups before each rollout, and again, for environments, where those are not fixed.
        self._drawing.update_reset_state_ids()
        fixed = self._drawing.use_fixed_reset_state_ids
        size = self._stages.size
        self._ids = (
            self._drawing.reset_state_ids if fixed else self._drawing._get_random_reset_state_ids(size)
        )
        self._rollout += 1


class StockScenes:
    """Stands before RLinf's LIBERO; nothing changes before `stand_at`."""

    _stages: Stages
    _ids: Any = None
    _seeds: Sequence[int] | None = None

    def stand_at(self, place: int, rollout: int) -> None:
        """Let the next reset begin rollout number `rollout`, from 0, of the environments at `place`."""
        stage, part = self._stages.at(place, self.num_envs)  # type: ignore[attr-defined]
        draws: dict[int, StageDraws] = self.__dict__.setdefault("_draws", {})
        if stage not in draws:
            draws[stage] = StageDraws(self, self._stages, stage)
        self._ids = draws[stage].of(rollout)[part]
        self._seeds = self._stages.scene_seeds(stage, self.group_size)[part]  # type: ignore[attr-defined]

    def reset(self, env_idx: Any = None, reset_state_ids: Any = None) -> Any:
        if self._ids is None or env_idx is not None or reset_state_ids is not None:
            return super().reset(env_idx, reset_state_ids)  # type: ignore[misc]
        self._is_start = False  # RLinf's first reset would not look at the ids that it is given
        return super().reset(reset_state_ids=self._ids)  # type: ignore[misc]

    def _init_env(self) -> None:
        super()._init_env()  # type: ignore[misc]
        vector: Any = self.env  # type: ignore[attr-defined]
        vector.seed = partial(self._seed, vector.seed)

    def _seed(self, seed: Callable[[Any], Any], by_number: int) -> Any:
        return seed(by_number if self._seeds is None else list(self._seeds))


def has_stock_scenes(section: Mapping[str, Any]) -> bool:
    """Return True if the environments of an `env` section are RLinf's LIBERO, reset as a whole."""
    return section.get("env_type") == "libero" and not (section.get("env_class") or section.get("auto_reset"))


def with_stock_scenes(env_cls: type, section: Mapping[str, Any], stages: Stages) -> type:
    """Return `env_cls`, or a subclass that can `stand_at` a place.

    Args:
        env_cls: The class that RLinf builds for the `env` section `section`.
    """
    if not has_stock_scenes(section) or not all(
        callable(getattr(env_cls, name, None)) for name in NEEDED_METHODS
    ):
        return env_cls
    own = {"__module__": env_cls.__module__, "_stages": stages}
    return type(env_cls.__name__, (StockScenes, env_cls), own)
