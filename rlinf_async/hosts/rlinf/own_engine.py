"""Rollout workers with their own inference engine, besides or instead of RLinf's `hf_model`.

Such a class takes new weights in RLinf's method `sync_model_from_actor`, or in this package's method
`apply_weights(state_dict, version)`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]

APPLY_METHOD, SYNC_METHOD = "apply_weights", "sync_model_from_actor"
POLICY_ATTRIBUTE = "hf_model"
BOOTSTRAP_METHOD = "get_bootstrap_values"
"""RLinf's method for the values of final observations, which newer versions of RLinf do not have."""
LARGEST_ATTRIBUTE = "largest_batch"
"""Attribute of a class: the most environments that its `predict` takes at once."""
RLINFS_SIZES = ("per_node_train_batch_size", "per_node_eval_batch_size")
"""Sizes of RLinf's own calls of `predict`, in environments; engines reserve memory for them."""
UNCALLED_METHODS = ("request_actor_sync_model", "_recv_and_apply_actor_sync")
"""Methods with which RLinf's asynchronous rollout worker takes weights; this package does not call them."""
TOTAL_KEY, VERSION_KEY = "total_buckets", "syncer_version"
"""Keys in a bucket of RLinf's bucket syncer, besides the names of weights."""


class Inbox:
    """The actor's side of one call of `sync_model_from_actor`: holds all weights of a version, to be taken
    once.

    It replaces the worker's weight syncer, and its `broadcast`, `recv` and `send`, for classes that take
    weights without a syncer: those get a single bucket in the format of RLinf's bucket syncer.
    """

    comm_options = None

    def __init__(self, tensors: Tensors, version: int) -> None:
        self._tensors, self._version = dict(tensors), version
        self.models: list[Any] = []
        """Models that received the weights."""
        self.taken = False

    @classmethod
    def like(cls, syncer: object, tensors: Tensors, version: int) -> Inbox:
        """Return an inbox that also is of the class of `syncer`, and has its attributes: some engines take
        weights from one kind of syncer only.
        """
        kind = cls if syncer is None else type(cls.__name__, (cls, type(syncer)), {})
        inbox: Inbox = kind(tensors, version)
        vars(inbox).update({**vars(syncer), **vars(inbox)} if syncer is not None else {})
        return inbox

    def receiver_initialized(self) -> bool:
        return True

    async def init_receiver(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no handshake."""

    async def apply(self, model: Any, recv: Callable[..., Any]) -> int:
        """Write the weights into `model`, and return their version."""
        model.load_state_dict(self._tensors, strict=False)
        self.models.append(model)
        self.taken = True
        return self._version

    def receive(self, *_: Any, async_op: bool = False, **__: Any) -> Any:
        """Return the only bucket of this version, or a handle of it.

        Raises:
            RuntimeError: the bucket was taken already.
        """
        if self.taken:
            raise RuntimeError(f"version {self._version} comes in one bucket, and was received twice")
        self.taken = True
        counts = {TOTAL_KEY: torch.tensor(1), VERSION_KEY: torch.tensor(self._version)}
        bucket = {**self._tensors, **counts}
        return Arrived(bucket) if async_op else bucket

    def send(self, *_: Any, async_op: bool = False, **__: Any) -> Any:
        """Do nothing: the actor needs no answer."""
        return Arrived(None) if async_op else None


class Arrived:
    """The handle of a message that has arrived."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def wait(self) -> Any:
        return self._message

    async def async_wait(self) -> Any:
        return self._message


def overrides(cls: type, stock: type, method: str) -> bool:
    """Return True if `cls` has a `method` other than that of RLinf's class `stock`, which may have none."""
    # Unwrapped: Ray wraps all methods of an actor's class, the inherited ones too, and RLinf some.
    own, theirs = (getattr(each, method, None) for each in (cls, stock))
    return (own and inspect.unwrap(own)) is not (theirs and inspect.unwrap(theirs))


def sync(worker: Any, tensors: Tensors, version: int) -> None:
    """Have `worker` take weights in its own `sync_model_from_actor`, and load them into its `hf_model`, if
    any.

    Raises:
        RuntimeError: the method did not take them.
    """
    inbox = Inbox.like(getattr(worker, "weight_syncer", None), tensors, version)
    ends = {"weight_syncer": inbox, "broadcast": inbox.receive, "recv": inbox.receive, "send": inbox.send}
    with _attributes(worker, ends):
        # In the inference thread, like all work on the policy.
        asyncio.run(worker.sync_model_from_actor())
    if not inbox.taken:
        raise RuntimeError(
            f"{type(worker).__name__}.{SYNC_METHOD} has not taken version {version}: it takes weights by "
            f"self.weight_syncer.apply or self.broadcast, or the class has a method {APPLY_METHOD}"
            "(state_dict, version)"
        )
    policy = getattr(worker, POLICY_ATTRIBUTE, None)
    # Ranks score with `hf_model`, even if another engine acts.
    if policy is not None and not any(model is policy for model in inbox.models):
        policy.load_state_dict(tensors, strict=False)


@contextmanager
def _attributes(worker: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of an instance inside the block."""
    before = {name: vars(worker)[name] for name in values if name in vars(worker)}
    vars(worker).update(values)
    try:
        yield
    finally:
        for name in values:
            vars(worker).pop(name)
        vars(worker).update(before)


def unserved(own: Sequence[type]) -> list[str]:
    """Return the methods that would use outdated weights: they take weights in a way that this package does
    not call, or act without `hf_model`. Empty if a class has `apply_weights` or `sync_model_from_actor`.

    Args:
        own: the classes before RLinf's or ours in the method resolution order.
    """
    methods = _methods(own)
    if APPLY_METHOD in methods or SYNC_METHOD in methods:
        return []
    other = [name for name in UNCALLED_METHODS if name in methods]
    return other + (["predict"] if acts_elsewhere(own) else [])


def acts_elsewhere(own: Sequence[type]) -> bool:
    """Return True if the classes `own`, as in `unserved`, override `predict` without RLinf's `hf_model`."""
    methods = _methods(own)
    return "predict" in methods and not _leads_to_policy(methods)


def most_at_once(worker: Any, size: int) -> int:
    """Return the largest number of environments, up to `size`, for one call of `worker.predict`.

    It is the engine's attribute `largest_batch`; without one, the number in a call of RLinf's own loop.
    """
    largest = getattr(worker, LARGEST_ATTRIBUTE, None)
    if largest is None:
        if not worker.acts_elsewhere:
            return size
        largest = max(1, *(getattr(worker, name) for name in RLINFS_SIZES))
    return min(size, int(largest))


def rows_at_once(worker: Any, size: int) -> Iterator[range]:
    """Yield the rows of `size` environments for each call of `worker.predict`."""
    most = most_at_once(worker, size)
    yield from (range(start, min(start + most, size)) for start in range(0, size, most))


def _methods(own: Sequence[type]) -> dict[str, FunctionType]:
    methods: dict[str, FunctionType] = {}
    for cls in reversed(own):
        # RLinf's metaclass wraps the public methods of a worker.
        functions = {name: inspect.unwrap(value) for name, value in vars(cls).items() if callable(value)}
        methods |= {name: value for name, value in functions.items() if isinstance(value, FunctionType)}
    return methods


def _leads_to_policy(methods: Mapping[str, FunctionType]) -> bool:
    """Return True if `predict`, or a method that it calls, uses `hf_model` or calls the overridden method."""
    waiting, seen = ["predict"], set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        names = set(_names_in(methods[name].__code__))
        if POLICY_ATTRIBUTE in names or ("super" in names and name in names):
            return True
        waiting += [each for each in names & methods.keys() if each not in seen]
    return False


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            yield constant  # as in `getattr(self, "hf_model")`
