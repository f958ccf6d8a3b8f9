"""Environments that give what a host has to take, or to refuse: a steady class, and what may be strange.

All have the interface of `rlinf_async.envs`. What they show says who shows it and when, so that a test sees
what has become of it. A class is made hostile by a few methods; more may be added here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

CHUNK, ACTION = 2, 3


class Steady:
    """`num_envs` environments whose every number is known.

    The states of environment i are (its number in the run, its episode, decisions since the reset), and
    reward number c of decision d is `10 * d + c`. Environments with an odd number come to their end with
    decision `ends`, the others are cut off there, if `ends` is not 0.
    """

    ends: ClassVar[int] = 0
    """Decisions in an episode; 0 is never."""

    def __init__(
        self, cfg: Any, num_envs: int, seed_offset: int, total_num_processes: int, worker_info: object
    ) -> None:
        del total_num_processes, worker_info  # part of the interface
        self.cfg, self.size, self.place = cfg, num_envs, seed_offset
        self.auto_reset = bool(cfg.get("auto_reset", False))
        self.ignore_terminations = bool(cfg.get("ignore_terminations", False))
        self.is_start = False
        self.name = torch.arange(num_envs) + seed_offset * num_envs
        self.episode, self.age = torch.zeros(num_envs), torch.zeros(num_envs)
        self.gain = torch.zeros(num_envs)
        self.closed = False

    def reset(self) -> Any:
        self._begin(torch.ones(self.size, dtype=torch.bool))
        return self.observe(self.seen()), {}

    def update_reset_state_ids(self) -> None:
        """Every reset begins the next episode by itself."""

    def chunk_step(self, actions: Any) -> Any:
        self.age += 1
        rewards = 10 * self.age[:, None] + torch.arange(CHUNK)
        self.gain += rewards.sum(dim=1)
        terminations, truncations = (torch.zeros(self.size, CHUNK, dtype=torch.bool) for _ in range(2))
        over = torch.full_like(terminations[:, 0], False) if not self.ends else self.age >= self.ends
        terminations[:, -1], truncations[:, -1] = over & (self.name % 2 == 1), over & (self.name % 2 == 0)
        info: dict[str, Any] = {"episode": self.statistics()}
        seen = self.seen()
        if self.auto_reset and over.any():
            info = {"final_observation": self.observe(seen, "final"), "final_info": info}
            self._begin(over)
            seen = self.seen()
        return self.give(self.observe(seen), rewards, terminations, truncations, info)

    def close(self) -> None:
        self.closed = True

    def seen(self) -> dict[str, Any]:
        """What the environments are like now, as new tensors."""
        states = torch.stack([self.name.float(), self.episode, self.age], dim=1)
        return {"states": states, "task_descriptions": ["go"] * self.size}

    def statistics(self) -> dict[str, Any]:
        return {"return": self.gain.clone(), "success_once": self.name % 2 == 1}

    def observe(self, seen: dict[str, Any], where: str = "now") -> Any:
        """How it is shown; `where` is "final" for the last observation of episodes that begin anew."""
        return seen

    def give(self, seen: Any, rewards: Any, terminations: Any, truncations: Any, info: Any) -> Any:
        """How a decision's outcome is given."""
        return [seen], rewards, terminations, truncations, [info]

    def _begin(self, which: torch.Tensor) -> None:
        self.episode[which] += 1
        self.age[which] = 0
        self.gain[which] = 0


class InPlace(Steady):
    """All that is given is written where the last was, in arrays of one kind, nested as they may be."""

    make: ClassVar[Callable[[torch.Tensor], Any]] = staticmethod(torch.clone)
    """An array of the kind, with the numbers of a tensor."""

    def observe(self, seen: dict[str, Any], where: str = "now") -> Any:
        states, picture = seen["states"], seen["states"][:, :, None].to(torch.uint8)
        fields = {
            "states": self._written(f"states {where}", states),
            "camera": {"left": {"picture": self._written(f"picture {where}", picture)}},
            "hands": [self._written(f"hand {i} {where}", row) for i, row in enumerate(states)],
            "feet": tuple(self._written(f"foot {i} {where}", row) for i, row in enumerate(states)),
            "task_descriptions": seen["task_descriptions"],
        }
        shown: dict[str, Any] = vars(self).setdefault(f"_shown {where}", {})
        shown.update(fields)
        return shown

    def give(self, seen: Any, rewards: Any, terminations: Any, truncations: Any, info: Any) -> Any:
        own = [
            self._written(name, value)
            for name, value in zip(
                ("rewards", "ends", "cuts"), (rewards, terminations, truncations), strict=True
            )
        ]
        for place in (info, info.get("final_info") or {}):
            if "episode" in place:
                place["episode"] = {n: self._written(f"the {n}", v) for n, v in place["episode"].items()}
        outcome = vars(self).setdefault("_outcome", [[None], None, None, None, [{}]])
        outcome[0][0], outcome[1:4] = seen, own
        outcome[4][0].clear()
        outcome[4][0].update(info)
        return outcome

    def _written(self, name: str, value: torch.Tensor) -> Any:
        buffers: dict[str, Any] = vars(self).setdefault("_buffers", {})
        if name not in buffers:
            buffers[name] = self.make(value)
        buffers[name][...] = value if isinstance(buffers[name], torch.Tensor) else value.numpy()
        return buffers[name]


class InPlaceTensors(InPlace):
    """In tensors."""


class InPlaceArrays(InPlace):
    """In numpy's arrays."""

    make = staticmethod(lambda tensor: tensor.numpy().copy())


class InPlaceStrided(InPlace):
    """In every other element of tensors."""

    make = staticmethod(lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0])


class WritesIntoActions(Steady):
    """Takes the actions, and what it was given as its own."""

    def chunk_step(self, actions: Any) -> Any:
        actions[:] = 99.0
        return super().chunk_step(actions)


class Typed(Steady):
    """Numbers and flags of other types, in the arrays that `convert` makes of tensors."""

    convert: ClassVar[Callable[[torch.Tensor], Any]] = staticmethod(torch.clone)

    def observe(self, seen: dict[str, Any], where: str = "now") -> Any:
        return {**seen, "states": self.convert(seen["states"])}

    def give(self, seen: Any, rewards: Any, terminations: Any, truncations: Any, info: Any) -> Any:
        for place in (info, info.get("final_info") or {}):
            if "episode" in place:
                place["episode"] = {n: self.convert(v) for n, v in place["episode"].items()}
        own = map(self.convert, (rewards, terminations, truncations))
        return super().give(seen, *own, info)


def typed(name: str, how: Callable[[torch.Tensor], Any]) -> type[Typed]:
    """`Typed` with this conversion."""
    return type(name, (Typed,), {"convert": staticmethod(how)})


TYPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "float64": lambda tensor: tensor.double(),
    "numpy float64": lambda tensor: tensor.double().numpy(),
    "float16": lambda tensor: tensor.half(),
    "longdouble": lambda tensor: tensor.numpy().astype(np.longdouble),
    "big-endian": lambda tensor: tensor.numpy().astype(">f4"),
    "int64": lambda tensor: tensor.long(),
    "numpy int32": lambda tensor: tensor.numpy().astype(np.int32),
    "not contiguous": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 1],
    "numpy reversed": lambda tensor: tensor.numpy()[::-1].copy()[::-1],
    "read-only": lambda tensor: _read_only(tensor.numpy().copy()),
    "with gradients": lambda tensor: tensor.float().requires_grad_(),
}
"""By names, what numbers and flags may come as."""


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class Altered(Steady):
    """Steady, but that `alter` changes what it gives from decision number `since` of its life on."""

    since: ClassVar[int] = 1
    """0 is the reset."""
    alter: ClassVar[Callable[[dict[str, Any]], None]]
    """Changes a mapping with `observation`, `rewards`, `terminations`, `truncations` and `info`."""
    decided = 0

    def reset(self) -> Any:
        observation, info = super().reset()
        if self.since:
            return observation, info
        given = {"observation": observation, "info": info}
        type(self).alter(given)
        return given["observation"], given["info"]

    def give(self, seen: Any, rewards: Any, terminations: Any, truncations: Any, info: Any) -> Any:
        self.decided += 1
        given = {
            "observation": seen,
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "info": info,
        }
        if self.decided >= self.since:
            type(self).alter(given)
        return (
            [given["observation"]],
            *(given[n] for n in ("rewards", "terminations", "truncations")),
            [given["info"]],
        )


def altered(how: Callable[[dict[str, Any]], None], *, since: int = 1, base: type = Altered) -> type[Altered]:
    """`Altered` in this way."""
    return type("Strange", (base,), {"alter": staticmethod(how), "since": since})


class DrawsFromTorch(Steady):
    """Begins each episode at a place that torch's generator of the process gives."""

    drawn: ClassVar[list[float]] = []

    def reset(self) -> Any:
        observation, info = super().reset()
        places = torch.rand(self.size)
        type(self).drawn += places.tolist()
        return {**observation, "places": places}, info
