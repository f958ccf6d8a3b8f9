"""RLinf's ManiSkill drawing its initial states as if it were alone in its process.

A reset of ManiSkill seeds torch's generator, draws, and puts back what the generator was before. That
generator belongs to the process: shards in threads of one env worker, or one for evaluation beside them,
would draw each other's numbers. Steps draw nothing. RLinf's other simulators that draw from a generator of
the process (robosuite, Meta-World, CALVIN: numpy's) have a process each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch

RESETS = RLock()
"""Held by who builds or resets ManiSkill in this process."""


def with_own_chance(env_cls: type, *, env_type: str, several: bool) -> type:
    """`env_cls`, whose resets wait for each other in this process.

    Args:
        env_type: as `env.train.env_type`; other classes than ManiSkill's come back as they are.
        several: True if environments for training share the process: what they draw without a seed follows
            from their own then, else from the process, as in RLinf alone.
    """
    if env_type != "maniskill" or not isinstance(env_cls, type):
        return env_cls
    own = {"__module__": env_cls.__module__, "_draws_apart": several}
    return type(env_cls.__name__, (_OwnChance, env_cls), own)


class _OwnChance:
    """Stands before RLinf's class."""

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
        """A block in which no other environments draw, and after which torch draws as if it had not been."""
        with RESETS:
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
