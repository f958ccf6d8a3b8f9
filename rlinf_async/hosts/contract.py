"""Checks and copies the values that environments return, before the loops use them.

Every host passes the outputs of its environments through this module, so that an environment that trains on
one host trains on all. Observations are copied, as environments may reuse their
arrays. Flags become bool tensors and numbers become tensors, from arrays or lists of any kind. Expected
shapes follow from the number of environments and the steps of a decision. The first observation defines the
fields of an observation; later ones must have the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch

from rlinf_async.core.failures import LONGEST_ERROR, one_line
from rlinf_async.hosts.observations import Empty, copied

Tensors = dict[str, torch.Tensor]
ObservationKind = Literal["reset", "step", "final"]
"""The source of an observation: a reset, a step, or (final) the last step of an episode before its automatic
reset."""

# RLinf's `env_interact_step` reads these (0.3 and main): if it read another, its value would not be copied.
READ_KEYS = ("final_info", "episode", "intervene_action", "intervene_flag")
"""Keys of a step's `info` mapping that a run reads, besides final observations."""


# numpy calculates in float64 unless it is told otherwise, so that a reset and a step often give other types.
# Half precisions are left alone: a number may be too large for them.
PRECISIONS = (torch.float32, torch.float64)
"""Types of observations that follow the type that their field had at first."""
MAX_EXACT = 2**24
"""float32 represents every whole number up to this one."""


@dataclass(frozen=True)
class Field:
    """The type and the shape of one field of an observation."""

    kind: str
    """`float`, `int`, `bool` or `complex` for arrays; for other values, the name of their type."""
    shape: tuple[int, ...] | None = None
    """The shape of an array, with the environments first."""

    def __str__(self) -> str:
        return self.kind if self.shape is None else f"{self.kind} {list(self.shape)}"


@dataclass(frozen=True)
class Step:
    """The results of B environments for a decision of C steps, copied."""

    observation: dict[str, Any]
    """The observation after the last step of the decision."""
    rewards: torch.Tensor
    """[B, C], in the environments' floating-point type, or in float32 if they returned another type."""
    terminations: torch.Tensor
    """[B, C] bool."""
    truncations: torch.Tensor
    """[B, C] bool."""
    info: dict[str, Any] = field(default_factory=dict)
    """The `info` of the last step. Only the entries that a run reads are copied: `final_observation`,
    `episode`, the same in `final_info`, and interventions."""

    @property
    def dones(self) -> torch.Tensor:
        """[B, C] bool: the episode terminated or was truncated."""
        return self.terminations | self.truncations

    # The one definition of an episode's end inside a decision: its first termination or truncation. Later
    # steps of the decision belong to no episode that is trained or evaluated.

    @property
    def ended(self) -> torch.Tensor:
        """[B] bool: an episode ended in a step of this decision."""
        return self.dones.any(dim=1)

    @property
    def cut(self) -> torch.Tensor:
        """[B] bool: the first end in this decision is a truncation without a termination at the same step."""
        return (self._first_end & ~self.terminations).any(dim=1)

    @property
    def reward(self) -> torch.Tensor:
        """[B] float32, the sum of the rewards up to and including the first end in this decision."""
        # `where`, not a product: a reward after the end may be infinite, and 0 times infinity is not 0.
        return torch.where(self._over, 0.0, self.rewards.float()).sum(dim=1)

    @property
    def _over(self) -> torch.Tensor:
        """[B, C] bool: the episode ended in an earlier step of this decision."""
        return (self.dones.long().cumsum(dim=1) - self.dones.long()) > 0

    @property
    def _first_end(self) -> torch.Tensor:
        return self.dones & ~self._over

    def finite_fields(self) -> dict[str, Any]:
        """The values that must be finite, by names for messages."""
        statistics = (self.info.get("final_info") or self.info).get("episode")
        return finite_fields(self.observation, self.rewards, self.info.get("final_observation"), statistics)


def finite_fields(
    observation: Mapping[str, Any],
    rewards: torch.Tensor | None = None,
    final: Any = None,
    statistics: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the values of an environment's output that must be finite and are not known to be, by names for
    messages."""
    numbers = {**observation, "final_observation": final}
    if rewards is not None and not _has_finite_squares(rewards):
        # Advantages are divided by a standard deviation: a reward of 1e38 is finite, but its square is not.
        squares = torch.where(torch.isfinite(rewards), rewards.float().square(), 0.0)
        numbers = {"rewards": rewards, **numbers, "squares of rewards in float32": squares}
    return numbers | ({"statistics of episodes": statistics} if statistics else {})


def _has_finite_squares(rewards: torch.Tensor) -> bool:
    """Return True if the sum of the squares of `rewards` in float32 is finite, which proves that the rewards
    and their squares are."""
    flat = rewards.reshape(-1).float()
    return math.isfinite(torch.dot(flat, flat).item())


class Rows(Protocol):
    """Memory for the observations of rollouts, a row for each; `wire.shown_memory` has the one of runs."""

    def begin(self) -> None:
        """A rollout begins: the next observation is its first."""

    def next(self) -> None:
        """A step: the next observation is that after it."""

    def empty(self, name: str, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor on the CPU for the field `name` of the observation, its values undefined."""


class Contract:
    """Checks the outputs of the `size` environments of a shard, against the fields seen in their first
    rollout.

    Every method raises a ValueError that names the environments, the field, its value and the expected one.
    """

    def __init__(self, shard: int, size: int, *, fields: Collection[str] = ()) -> None:
        """`fields`: the fields of observations that policies receive; empty for all."""
        self._shard, self._size = shard, size
        self._field_names = frozenset(fields)
        self._name = ""
        self._first_fields: dict[ObservationKind, dict[str, Field]] = {}
        self._precisions: dict[str, torch.dtype] = {}
        self._accepted: dict[ObservationKind, Form] = {}
        """The form of the last observation of each kind that was accepted, and needed no other precision."""
        self.rows: Rows | None = None
        """The memory of observations of resets and steps; None: new memory for each."""
        self._proven = False
        self._flags: list[tuple[torch.Tensor, torch.Tensor]] = []
        """The terminations and the truncations of each decision of this rollout."""

    def of(self, env: object) -> Contract:
        """Return this contract, with the class name of `env` in its messages from now on."""
        self._name = type(env).__name__
        return self

    @property
    def owner(self) -> str:
        """The name of the environments in messages."""
        name = f" ({self._name})" if self._name else ""
        return f"the environments of shard {self._shard}{name}"

    @property
    def endless(self) -> int:
        """The number of environments that have reported no end of an episode in this rollout."""
        ended = torch.zeros(self._size, dtype=torch.bool)
        for terminations, truncations in self._flags:
            ended |= (terminations | truncations).any(dim=1)
        return int((~ended).sum())

    def prove(self) -> None:
        """A rollout is complete: from now on, rebuilt environments must have the fields seen so far."""
        self._proven = True
        self._flags = []

    def forget(self) -> None:
        """The environments were rebuilt: they may have other fields if no rollout was ever completed."""
        self._flags = []
        if not self._proven:
            self._first_fields, self._precisions, self._accepted = {}, {}, {}

    def reset(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the observation and the `info` of a reset."""
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ValueError(
                self._refusal(f"{_outputs(value)} by reset", "a pair of an observation and information")
            )
        observation, info = value
        return self.observation(observation), self._info(info, keys=())

    def step(self, value: Any, *, steps: int) -> Step:
        """Return the results of `chunk_step` for a decision of `steps` steps."""
        if not isinstance(value, tuple | list) or len(value) != 5:
            names = "observations, rewards, terminations, truncations and information"
            raise ValueError(self._refusal(f"{_outputs(value)} by chunk_step", names))
        observations, rewards, terminations, truncations, infos = value
        shape = (self._size, steps)
        results = Step(
            observation=self.observation(last(observations), "step"),
            rewards=self.numbers("rewards", rewards, shape),
            terminations=self.flags("terminations", terminations, shape),
            truncations=self.flags("truncations", truncations, shape),
            info=self._info(last(infos)),
        )
        self._flags.append((results.terminations, results.truncations))
        return results

    def observation(self, value: Any, kind: ObservationKind = "reset") -> dict[str, Any]:
        """Return a copy of an observation, with arrays as tensors."""
        name = "final observation" if kind == "final" else "observation"
        if not isinstance(value, Mapping):
            raise ValueError(self._refusal(f"the {name} as {_sort(value)}", "a mapping of fields"))
        read = [field for field in value if not self._field_names or field in self._field_names]
        own = {
            field: self._copied(f"the {name} {field!r:.50}", value[field], self._row(field, kind))
            for field in read
        }
        form = _form(own)
        # Most observations have the form of the one before, which has passed all checks below.
        if form is not None and form == self._accepted.get(kind):
            return own
        for nameless in _nameless(own):
            raise ValueError(self._refusal(f"the {name} with a field named {nameless!r:.50}", "a text"))
        fields = dict(_fields(own))
        for path, each in fields.items():
            if each.shape is not None and each.shape[0] != self._size:
                expectation = f"an item for each of their {self._size} environments"
                raise ValueError(self._refusal(f"the {name} {path!r} as {each}", expectation))
        self._compare(name, fields, kind)
        precise = self._as_precise(own)
        if form is not None and form == _form(precise):
            self._accepted[kind] = form
        return precise

    def again(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return an observation of the rollout before, with which the next one begins, in its own memory."""
        if self.rows is None:
            return observation
        return {name: copied(value, self._row(name, "reset")) for name, value in observation.items()}

    def _row(self, field: str, kind: ObservationKind) -> Empty | None:
        """Return the memory for a field; final observations are sent once, and not recorded."""
        return None if self.rows is None or kind == "final" else partial(self.rows.empty, field)

    def _as_precise(self, tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return an observation with every fraction in the precision that its field had at first."""
        return {name: self._at_first(value, f"{prefix}{name}") for name, value in tree.items()}

    def _at_first(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return self._as_precise(value, f"{path}.")
        if not isinstance(value, torch.Tensor) or value.dtype not in PRECISIONS:
            return value
        return value.to(self._precisions.setdefault(path, value.dtype))

    def _copied(self, name: str, value: Any, empty: Empty | None = None) -> Any:
        try:
            return copied(value, empty)
        # Broad: copying calls methods of foreign classes, and torch has tensors that cannot be copied so.
        except Exception as error:
            words = f"{name} that cannot be copied ({one_line(error, LONGEST_ERROR)})"
            raise ValueError(self._refusal(words, "arrays")) from error

    def numbers(self, name: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a copy of `value` as a tensor of this shape; in float32 if `value` is not floating-point."""
        tensor = self._shaped(name, value, shape)
        if tensor.is_floating_point():
            return tensor
        whole = tensor.long()
        if bool(((whole > MAX_EXACT) | (whole < -MAX_EXACT)).any()):
            sort = str(tensor.dtype).removeprefix("torch.")
            expectation = "whole numbers up to 2**24, which float32 holds, or fractions"
            raise ValueError(self._refusal(f"{name} of {sort} beyond 2**24", expectation))
        return tensor.float()

    def flags(self, name: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a copy of `value` as a bool tensor of this shape."""
        tensor = self._shaped(name, value, shape)
        if tensor.dtype is torch.bool:
            return tensor
        # NaN as bool is True: it would end an episode.
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ValueError(self._refusal(f"{name} that are not finite", "true or false"))
        # Rewards in the place of flags would end an episode, too.
        odd = tensor[(tensor != 0) & (tensor != 1)]
        if len(odd):
            raise ValueError(self._refusal(f"{name} with the number {odd[0].item():g}", "true or false"))
        return tensor.bool()

    def _shaped(self, name: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._array(name, value, shape)
        if tuple(tensor.shape) != shape:
            why = "a row for each environment, a column for each step of a decision"
            raise ValueError(self._refusal(f"{name} {list(tensor.shape)}", f"{list(shape)}, {why}"))
        return tensor

    def _array(self, name: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a copy of an array of numbers on the CPU; `shape` is the expected one, for messages."""
        tensor = self._copied(name, value) if isinstance(value, torch.Tensor) else value
        if not isinstance(value, torch.Tensor):
            # Kinds of numpy: b bool, i and u whole numbers, f fractions. Others are refused below.
            array = _stacked(value) if isinstance(value, list | tuple) else np.asarray(value)
            tensor = copied(array) if array.dtype.kind in "biuf" else None
        if tensor is None or tensor.is_complex():
            raise ValueError(self._refusal(f"{name} as {_sort(value)}", f"numbers {list(shape)}"))
        return tensor.cpu()

    def _info(self, value: Any, keys: Collection[str] = READ_KEYS) -> dict[str, Any]:
        """Return `info` with copies of the entries `keys` and of final observations."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ValueError(self._refusal(f"information as {_sort(value)}", "a mapping, or none"))
        info = dict(value)
        if info.get("final_observation") is not None:
            info["final_observation"] = self.observation(info["final_observation"], "final")
        for name in keys:
            if info.get(name) is not None:
                info[name] = self._copied_entry(name, info[name])
        return info

    def _copied_entry(self, name: str, value: Any) -> Any:
        if name == "final_info":
            return self._info(value)
        return self._statistics(value) if name == "episode" else self._copied(name, value)

    def _statistics(self, value: Any) -> Tensors:
        """Statistics of episodes, [B, ...] each, by name."""
        if not isinstance(value, Mapping):
            raise ValueError(self._refusal(f"statistics of episodes as {_sort(value)}", "a mapping"))
        return {
            str(name): self._statistic(f"the statistic {name!r} of episodes", value)
            for name, value in value.items()
        }

    def _statistic(self, name: str, value: Any) -> torch.Tensor:
        statistic = self._array(name, value, (self._size,))
        # One number stands for all environments of the shard.
        if not statistic.dim():
            return statistic.repeat(self._size)
        if len(statistic) != self._size:
            expectation = f"[{self._size}], a value for each environment"
            raise ValueError(self._refusal(f"{name} {list(statistic.shape)}", expectation))
        return statistic

    def _compare(self, name: str, fields: Mapping[str, Field], kind: ObservationKind) -> None:
        """Check that the observation has the same fields as the first one, with the same types and shapes."""
        # Fields of resets and steps are compared with each other: a policy gets both in one batch.
        first_fields = {path: each for fields in self._first_fields.values() for path, each in fields.items()}
        for path in fields.keys() & first_fields.keys():
            if fields[path] != first_fields[path]:
                raise ValueError(
                    self._refusal(
                        f"the {name} {path!r} as {fields[path]}", f"{first_fields[path]} as at first"
                    )
                )
        # A final observation may lack fields, as in stock RLinf: `prepare_observations` has None for them.
        if kind == "final":
            return
        first = self._first_fields.setdefault(kind, dict(fields))
        for path in first.keys() - fields.keys():
            raise ValueError(self._refusal(f"the {name} without {path!r}", f"{first[path]} as at first"))
        for path in fields.keys() - first.keys():
            raise ValueError(self._refusal(f"the {name} {path!r}", "no such field as at first"))

    def _refusal(self, value: str, expectation: str) -> str:
        return f"{self.owner} have given {value}; expected was {expectation}"


METHODS = ("reset", "chunk_step", "update_reset_state_ids")
"""The methods that every class of environments has."""


def check_environments(env: Any, section: Mapping[str, Any], *, key: str) -> None:
    """Check that an object has the methods of environments, and the values of `auto_reset` and
    `ignore_terminations` in its `section`.

    Raises:
        ValueError: it has not; `key` is the section's place in the config.
    """
    for name in ("auto_reset", "ignore_terminations"):
        does, wants = is_set(env, name, section[name]), bool(section[name])
        if does != wants:
            raise ValueError(
                f"{key}.{name}={wants}, and {type(env).__name__}.{name} is {does}; "
                f"use {key}.{name}={str(does).lower()}, or another env_class"
            )
    if missing := [name for name in METHODS if not callable(getattr(env, name, None))]:
        raise ValueError(
            f"{key}.env_class={section.get('env_class')} has made an object of the class "
            f"{type(env).__name__}, which lacks {', '.join(missing)}; environments have {', '.join(METHODS)}"
        )


def is_set(env: Any, name: str, default: object) -> bool:
    """Return the attribute `name` of environments, or `default`, as true or false.

    Raises:
        ValueError: it is neither.
    """
    value = getattr(env, name, default)
    try:
        return bool(value)
    except Exception as error:  # as of an array with several items
        found = repr(value)[:LONGEST_ERROR]
        raise ValueError(f"{type(env).__name__}.{name} is {found}, and must be true or false") from error


def last(values: object) -> Any:
    """Return the value of the last step from a list with the value of every step of a decision, or `values`
    itself, as environments may return either.
    """
    if isinstance(values, list | tuple):
        return values[-1] if values else None
    return values


def _nameless(tree: Mapping[Any, Any]) -> Iterator[Any]:
    """Names of fields, at any depth, that are not strings."""
    for name, value in tree.items():
        if not isinstance(name, str):
            yield name
        elif isinstance(value, Mapping):
            yield from _nameless(value)


Form = tuple[tuple[Any, ...], ...]
"""Names, types and shapes of the fields of an observation; observations of one form have equal `Field`s."""


def _form(observation: Mapping[str, Any]) -> Form | None:
    """Return the form of an observation; None if a field is no tensor, no list and not None."""
    form: list[tuple[Any, ...]] = []
    for name, value in observation.items():
        if type(value) is torch.Tensor:
            form.append((name, value.dtype, value.shape))
        elif value is None or type(value) is list:
            form.append((name, type(value), len(value or ())))
        else:
            return None
    return tuple(form)


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
    """Return a list of numbers or arrays as one array; an array of objects if their shapes differ."""
    plain = [value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value for value in values]
    try:
        # numpy raises for rows of different lengths; the array of None is then refused by its type.
        return np.asarray(plain)
    except ValueError:
        return np.asarray(None)


def _sort(value: object) -> str:
    """Return the name of a value's type for a message."""
    return "None" if value is None else type(value).__name__


def _outputs(value: object) -> str:
    """Return what a method has returned for a message: of a tuple or a list also its length, as old
    interfaces of environments return fewer values."""
    return f"a {_sort(value)}{f' of {len(value)}' if isinstance(value, tuple | list) else ''}"
