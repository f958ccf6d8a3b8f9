"""The border at which the loops take what environments give: copies of it, of known types and shapes.

Every host has its environments cross it, so that what trains on one trains on all. What comes across is ours:
environments may go on writing into the arrays that they have shown. Flags are bool and numbers are tensors,
whatever arrays or lists they were. Shapes follow from the number of environments and the steps of a decision;
what an observation consists of is learnt from the first one, and later ones are held to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from rlinf_async.hosts.observations import kept

Tensors = dict[str, torch.Tensor]
Place = Literal["reset", "step", "final"]
"""The moment at which an observation was shown; the last is that of an episode which another has followed."""

READ_KEYS = ("final_info", "episode", "intervene_action", "intervene_flag")
"""Keys of the information after a step that are read, besides final observations."""


@dataclass(frozen=True)
class Field:
    """The properties of one field of an observation."""

    kind: str
    """`float`, `int`, `bool` or `complex` of arrays; the type of anything else."""
    shape: tuple[int, ...] | None = None
    """The shape of an array, with the environments first."""

    def __str__(self) -> str:
        return self.kind if self.shape is None else f"{self.kind} {list(self.shape)}"


@dataclass(frozen=True)
class Step:
    """The results of B environments for a decision of C steps, in memory of their own."""

    observation: dict[str, Any]
    """The last of the decision."""
    rewards: torch.Tensor
    """[B, C], of the type that they had if it has fractions, else float32."""
    terminations: torch.Tensor
    """[B, C] bool."""
    truncations: torch.Tensor
    """[B, C] bool."""
    info: dict[str, Any] = field(default_factory=dict)
    """The last of the decision. Copied is what is read of it: `final_observation`, `episode`, the same in
    `final_info`, and interventions."""

    @property
    def dones(self) -> torch.Tensor:
        """[B, C] bool: the episode has come to its end, or was cut off."""
        return self.terminations | self.truncations

    @property
    def cut(self) -> torch.Tensor:
        """[B] bool: the episode was cut off, and has not come to its end in this decision."""
        return self.truncations.any(dim=1) & ~self.terminations.any(dim=1)

    def shown(self) -> dict[str, Any]:
        """All that has to be finite."""
        return shown(self.observation, self.rewards, self.info.get("final_observation"))


def shown(observation: Any, rewards: torch.Tensor | None = None, final: Any = None) -> dict[str, Any]:
    """All of an output that has to be finite, by names for messages."""
    fields = dict(observation) if isinstance(observation, Mapping) else {"states": observation}
    return {"rewards": rewards, **fields, "final_observation": final}


class Contract:
    """The outputs that the `size` environments of a shard have to give, as their first rollout has shown
    them.

    Every method raises a ValueError that names them, the field, what they gave and what was expected.
    """

    def __init__(self, shard: int, size: int, *, fields: Collection[str] = ()) -> None:
        """`fields`: of observations that policies are shown, if they are not shown all."""
        self._shard, self._size = shard, size
        self._shown = frozenset(fields)
        self._name = ""
        self._known: dict[Place, dict[str, Field]] = {}
        self._proven = False

    def of(self, env: object) -> Contract:
        """The same, for messages about these environments."""
        self._name = type(env).__name__
        return self

    @property
    def who(self) -> str:
        """The environments, in messages."""
        name = f" ({self._name})" if self._name else ""
        return f"the environments of shard {self._shard}{name}"

    def prove(self) -> None:
        """A rollout is complete: others that take the place of these environments are held to it, too."""
        self._proven = True

    def forget(self) -> None:
        """Others take the place of these environments: they may show something else if these never worked."""
        if not self._proven:
            self._known = {}

    def reset(self, given: Any, *, observes: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
        """The observation and the information of a reset; `observes` as of `step`."""
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ValueError(
                self._refusal(f"a {_sort(given)} by reset", "a pair of an observation and information")
            )
        observation, info = given
        return self.observation(observation) if observes else observation, self._info(info, told=())

    def step(self, given: Any, *, steps: int, observes: bool = True) -> Step:
        """Return the results of `chunk_step` for a decision of `steps` steps.

        Without `observes` the observation is left as it was given, and checked elsewhere.
        """
        if not isinstance(given, tuple | list) or len(given) != 5:
            names = "observations, rewards, terminations, truncations and information"
            raise ValueError(self._refusal(f"a {_sort(given)} by chunk_step", names))
        observations, rewards, terminations, truncations, infos = given
        shape = (self._size, steps)
        return Step(
            observation=self.observation(last(observations), "step") if observes else last(observations),
            rewards=self.numbers("rewards", rewards, shape),
            terminations=self.flags("terminations", terminations, shape),
            truncations=self.flags("truncations", truncations, shape),
            info=self._info(last(infos)),
        )

    def observation(self, given: Any, place: Place = "reset") -> dict[str, Any]:
        """A copy of what was shown, with numbers as tensors."""
        name = "final observation" if place == "final" else "observation"
        if not isinstance(given, Mapping):
            raise ValueError(self._refusal(f"the {name} as {_sort(given)}", "a mapping of fields"))
        read = {field: given[field] for field in given if not self._shown or field in self._shown}
        try:
            own: dict[str, Any] = kept(read)
        except TypeError as error:
            raise ValueError(
                self._refusal(f"the {name} with a field that cannot be copied ({error})", "arrays")
            ) from error
        for nameless in _nameless(own):
            raise ValueError(self._refusal(f"the {name} with a field named {nameless!r:.50}", "a text"))
        fields = dict(_fields(own))
        for path, found in fields.items():
            if found.shape is not None and found.shape[0] != self._size:
                expected = f"an item for each of their {self._size} environments"
                raise ValueError(self._refusal(f"the {name} {path!r} as {found}", expected))
        self._compare(name, fields, place)
        return own

    def numbers(self, name: str, given: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """A copy of `given` as a tensor of numbers of this shape; of float32, if it has no fractions."""
        tensor = self._shaped(name, given, shape)
        return tensor if tensor.is_floating_point() else tensor.float()

    def flags(self, name: str, given: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """A copy of `given` as a tensor of bool of this shape."""
        tensor = self._shaped(name, given, shape)
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ValueError(self._refusal(f"{name} that are not finite", "true or false"))
        return tensor.bool()

    def _shaped(self, name: str, given: Any, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._array(name, given, shape)
        if tuple(tensor.shape) != shape:
            why = "a row for each environment, a column for each step of a decision"
            raise ValueError(self._refusal(f"{name} {list(tensor.shape)}", f"{list(shape)}, {why}"))
        return tensor

    def _array(self, name: str, given: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """A copy of numbers on the CPU; `shape` is what is expected."""
        tensor = given
        if not isinstance(given, torch.Tensor):
            array = _stacked(given) if isinstance(given, list | tuple) else np.asarray(given)
            tensor = kept(array) if array.dtype.kind in "biuf" else None
        if tensor is None or tensor.is_complex():
            raise ValueError(self._refusal(f"{name} as {_sort(given)}", f"numbers {list(shape)}"))
        copied: torch.Tensor = tensor.detach().to("cpu", copy=True).contiguous()
        return copied

    def _info(self, given: Any, told: Collection[str] = READ_KEYS) -> dict[str, Any]:
        """Return information with copies of the entries `told`, and of final observations."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise ValueError(self._refusal(f"information as {_sort(given)}", "a mapping, or none"))
        info = dict(given)
        if info.get("final_observation") is not None:
            info["final_observation"] = self.observation(info["final_observation"], "final")
        for name in told:
            if info.get(name) is not None:
                info[name] = self._told(name, info[name])
        return info

    def _told(self, name: str, given: Any) -> Any:
        if name == "final_info":
            return self._info(given)
        return self._statistics(given) if name == "episode" else kept(given)

    def _statistics(self, given: Any) -> Tensors:
        """Statistics of episodes, [B, ...] each, by name."""
        if not isinstance(given, Mapping):
            raise ValueError(self._refusal(f"statistics of episodes as {_sort(given)}", "a mapping"))
        return {
            str(name): self._statistic(f"the statistic {name!r} of episodes", value)
            for name, value in given.items()
        }

    def _statistic(self, name: str, given: Any) -> torch.Tensor:
        statistic = self._array(name, given, (self._size,))
        if not statistic.dim():
            return statistic.repeat(self._size)
        if len(statistic) != self._size:
            expected = f"[{self._size}], a value for each environment"
            raise ValueError(self._refusal(f"{name} {list(statistic.shape)}", expected))
        return statistic

    def _compare(self, name: str, found: Mapping[str, Field], place: Place) -> None:
        """Hold fields to what they were first, wherever they were shown, and to be there where they were."""
        known = {path: each for fields in self._known.values() for path, each in fields.items()}
        for path in found.keys() & known.keys():
            if found[path] != known[path]:
                raise ValueError(
                    self._refusal(f"the {name} {path!r} as {found[path]}", f"{known[path]} as at first")
                )
        if place == "final":
            return
        first = self._known.setdefault(place, dict(found))
        for path in first.keys() - found.keys():
            raise ValueError(self._refusal(f"the {name} without {path!r}", f"{first[path]} as at first"))
        for path in found.keys() - first.keys():
            raise ValueError(self._refusal(f"the {name} {path!r}", "no such field as at first"))

    def _refusal(self, given: str, expected: str) -> str:
        return f"{self.who} have given {given}; expected was {expected}"


def check_resets(env: Any, section: Mapping[str, Any], *, key: str) -> None:
    """Check that environments reset themselves, and go on beyond their ends, as their `section` says.

    Raises:
        ValueError: they do not; the section stands at `key`.
    """
    for name in ("auto_reset", "ignore_terminations"):
        does, wants = bool(getattr(env, name, section[name])), bool(section[name])
        if does != wants:
            raise ValueError(
                f"{key}.{name}={wants}, and {type(env).__name__}.{name} is {does}; "
                f"use {key}.{name}={str(does).lower()}, or another env_class"
            )


def last(values: object) -> Any:
    """Return the value after the last step: environments may show all steps of a decision, or the last
    one.
    """
    if isinstance(values, list | tuple):
        return values[-1] if values else None
    return values


def _nameless(tree: Mapping[Any, Any]) -> Iterator[Any]:
    """Names of fields that are no texts, at any depth."""
    for name, value in tree.items():
        if not isinstance(name, str):
            yield name
        elif isinstance(value, Mapping):
            yield from _nameless(value)


def _fields(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Field]]:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        match value:
            case Mapping():
                yield from _fields(value, f"{path}.")
            case torch.Tensor():
                yield path, Field(_numeric(value), tuple(value.shape) or None)
            case bool() | int() | float() | np.generic():
                yield path, Field(_numeric(torch.as_tensor(value)))
            case list() | tuple():
                yield path, Field("list" if isinstance(value, list) else "tuple", (len(value),))
            case _:
                yield path, Field(_sort(value))


def _numeric(tensor: torch.Tensor) -> str:
    if tensor.dtype is torch.bool:
        return "bool"
    return "complex" if tensor.is_complex() else "float" if tensor.is_floating_point() else "int"


def _stacked(values: list[Any] | tuple[Any, ...]) -> np.ndarray:
    """A list of numbers or of arrays, as one array; of objects where they do not fit together."""
    plain = [value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value for value in values]
    try:
        return np.asarray(plain)
    except ValueError:
        return np.asarray(None)


def _sort(value: object) -> str:
    """Return the name of a value's type for a message."""
    return "None" if value is None else type(value).__name__
