"""Makes RLinf's ManiSkill draw its initial states as if it were alone in its process.

A reset of ManiSkill seeds torch's generator, draws, and restores the generator's state. That generator
belongs to the process: shards in threads of one env worker, and evaluation shards, would draw each other's
numbers. Steps draw no numbers. RLinf's other simulators that draw from a process-wide generator (robosuite,
Meta-World, CALVIN: numpy's) have their own processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

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
