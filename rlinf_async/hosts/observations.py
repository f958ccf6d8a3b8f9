"""Observations of environments: copied on arrival, joined into one batch for a policy, and left out of its
answers where it returns an image unchanged.

A field that is a tensor, a list, a tuple, or a mapping of these has an item for each environment. Any other
value (a number, a string, a tensor without dimensions) must be the same for all environments of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from rlinf_async.core.tensors import Tree

T = TypeVar("T")


PLAIN = (str, bytes, bool, int, float, np.generic)
"""Types of values that nothing can change."""


Empty = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Returns a tensor on the CPU of this shape and type, its values undefined."""


def copied(value: Any, empty: Empty | None = None) -> Any:
    """Return a copy of an observation, as environments may reuse its memory.

    Arrays of numbers become tensors; arrays of strings or objects become lists.

    Args:
        empty: the memory of the copy, if `value` is a tensor or an array of numbers; None for new memory on
            its own device.
    """
    # First, as a list has many of them.
    if value is None or isinstance(value, PLAIN):
        return value
    match value:
        case torch.Tensor():
            if value.is_meta:
                raise ValueError("a tensor on the device meta has no data")
            if empty is not None:
                return empty(value.shape, value.dtype).copy_(value.detach())
            return value.detach().clone(memory_format=torch.contiguous_format)
        case np.ndarray():
            return _tensor(value, empty)
        case Mapping():
            return {name: copied(field) for name, field in value.items()}
        case list():
            return [copied(item) for item in value]
        case tuple():
            return tuple(copied(item) for item in value)
        case _:
            return copy.deepcopy(value)


def _tensor(array: np.ndarray, empty: Empty | None) -> Any:
    """Return a copy of an array: a tensor if it holds numbers, else a list."""
    # numpy's kinds that torch has: bool, int, unsigned int, float, complex.
    if array.dtype.kind not in "biufc":
        return copied(array.tolist())
    # torch has no long double: floats wider than 8 bytes (complex: 16) are narrowed.
    if array.dtype.kind in "fc" and array.dtype.itemsize > 8 * (1 + (array.dtype.kind == "c")):
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.complex128)
    dtype = array.dtype.newbyteorder("=")
    if empty is not None:
        tensor = empty(array.shape, torch.from_numpy(np.empty(0, dtype)).dtype)
        np.copyto(tensor.numpy(), array)
        return tensor
    # A copy in C order: `from_numpy` refuses a foreign byte order and negative strides, and shares memory.
    return torch.from_numpy(np.array(array, dtype=dtype, order="C"))


def items(value: Any, numbers: Sequence[int]) -> Any:
    """Return the items at `numbers` of every field; values that all environments share are kept."""
    match value:
        case torch.Tensor() if value.dim():
            return value[list(numbers)]
        case np.ndarray() if value.ndim:
            return value[list(numbers)]
        case Mapping():
            return {name: items(field, numbers) for name, field in value.items()}
        case list():
            return [value[number] for number in numbers]
        case tuple():
            return tuple(value[number] for number in numbers)
    return value


def storages(value: Any) -> set[int]:
    """Return the addresses of the storages of an observation's tensors."""
    match value:
        case torch.Tensor():
            return {value.untyped_storage().data_ptr()}
        case Mapping():
            return storages(list(value.values()))
        case list() | tuple():
            return {place for item in value for place in storages(item)}
    return set()


def merge(observations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the observations of several shards into one batch, in order; a field that is None for all stays
    None.

    Raises:
        ValueError: only some shards have a field, its kind differs, or shards differ in a value that must be
            the same for the whole batch.
    """
    return _merge_fields(observations, "")


def kind(value: Any) -> Hashable:
    """Return a key that is equal for values that can be joined: types and shapes, else the value."""
    # The most frequent types come first, as every request is looked at.
    if isinstance(value, torch.Tensor):
        if value.dim():
            # torch.cat silently widens one type to another, and fails for another device.
            return torch.Tensor, value.dtype, value.device, value.shape[1:]
        # One value for the whole batch, which must be the same in all shards.
        return type(value), str(value.dtype), value.item()
    if value is None or isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value)
    if isinstance(value, Mapping):
        return frozenset([(name, kind(field)) for name, field in value.items()])
    if isinstance(value, np.ndarray):
        if value.ndim:
            return np.ndarray, value.dtype.str, value.shape[1:]
        return type(value), str(value.dtype), value.item()
    # An object of an unknown type may not support comparison: it is alike only to itself.
    return id(value)


def kind_of_request(payload: Mapping[str, Any]) -> Hashable:
    """Return the kinds of the observation of a request, and of the final observation of ended episodes."""
    own, final = kind(payload["obs"]), payload.get("final_obs")
    # A request without a final observation can join others if their final observations have the same fields.
    return own, own if final is None else kind(final)


def alike(values: Sequence[Any], kind_of: Callable[[Any], Hashable] = kind) -> list[list[int]]:
    """Return groups of indices of observations, or of requests, that can be one batch: they are of the same
    kind.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, value in enumerate(values):
        groups.setdefault(kind_of(value), []).append(number)
    return list(groups.values())


def each_alike(
    values: Sequence[Any],
    answer: Callable[[list[int]], Sequence[T]],
    kind_of: Callable[[Any], Hashable] = kind,
) -> list[T]:
    """Return the result for each value; `answer` is called once for each group of `alike` values."""
    answers = {
        number: one
        for numbers in alike(values, kind_of)
        for number, one in zip(numbers, answer(numbers), strict=True)
    }
    return [answers[number] for number in range(len(values))]


def _merge_fields(observations: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, Any]:
    names = list(dict.fromkeys(name for observation in observations for name in observation))
    for name in names:
        without = [number for number, observation in enumerate(observations) if name not in observation]
        if without:
            raise ValueError(
                f"the observation {prefix + name!r} is shown by some shards of a batch and not by others: it "
                f"is missing in {_numbers(without)} of {len(observations)}"
            )
    return {
        name: _join_field(prefix + name, [observation[name] for observation in observations])
        for name in names
    }


def _join_field(name: str, values: list[Any]) -> Any:
    first = values[0]
    # Of one type they are of one sort.
    several = len({type(value) for value in values}) > 1
    different = [number for number, value in enumerate(values) if several and _sort(value) != _sort(first)]
    if different:
        other = values[different[0]]
        raise ValueError(
            f"the observation {name!r} is a {type(first).__name__} for some shards of a batch, and a "
            f"{type(other).__name__} in {_numbers(different)} of {len(values)}"
        )
    match first:
        case torch.Tensor() if first.dim():
            return torch.cat(values)
        case np.ndarray() if first.ndim:
            return np.concatenate(values)
        case list():
            return [item for value in values for item in value]
        case tuple():
            return tuple(item for value in values for item in value)
        case Mapping():
            return _merge_fields(values, f"{name}.")
    if len(values) > 1 and len({kind(value) for value in values}) > 1:
        raise ValueError(
            f"the observation {name!r} is a {type(first).__name__} that differs between shards; use a "
            "tensor, an array or a list with an item for each environment, or a mapping of such"
        )
    return first


def _sort(value: Any) -> type:
    """Return the type that decides how `_join_field` joins values."""
    return next(
        (sort for sort in (torch.Tensor, np.ndarray, list, tuple, Mapping) if isinstance(value, sort)),
        type(value),
    )


def _numbers(groups: list[int]) -> str:
    return f"number {', '.join(map(str, groups[:3]))}{', ...' if len(groups) > 3 else ''}"


def without_echoes(inputs: Tree, observation: Mapping[str, Any]) -> tuple[Tree, dict[str, str]]:
    """Leave out the `inputs` of a policy that equal images of an observation.

    Returns:
        The other inputs, and a mapping from the name of each input left out to the name of the equal image.
    """
    pictures = {name: pixels for name, pixels in observation.items() if _is_picture(pixels)}
    echoes = {
        name: picture
        for name, value in inputs.items()
        if _is_picture(value)
        for picture, pixels in pictures.items()
        # By content, as the policy may have copied an image. Cropped or cast images are no echo. By numpy,
        # which compares bytes five times as fast as `torch.equal`.
        if np.array_equal(value.numpy(), pixels.numpy())  # type: ignore[union-attr]
    }
    return {name: value for name, value in inputs.items() if name not in echoes}, echoes


def with_echoes(inputs: Tree, echoes: Mapping[str, str], observation: Mapping[str, Any]) -> Tree:
    """Put back the images that `without_echoes` left out of `inputs`: those of `observation` itself, which
    must be a copy that no environment writes to (`copied`).
    """
    return {**inputs, **{name: observation[picture] for name, picture in echoes.items()}}


def _is_picture(value: object) -> bool:
    """Return True for uint8 tensors on the CPU. Others are small, or differ from the observation's tensor in
    device or type.
    """
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.device.type == "cpu"
