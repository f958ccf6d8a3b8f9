"""Examines whether a policy depends on one observation and its weights alone, and keeps its buffers.

Every host relies on both: requests are answered in any order, in any batch and on any rank, and each
publication overwrites the buffers.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.observations import items, merge

Decide = Callable[[list[Mapping[str, Any]], int, str, int], Mapping[str, Any]]
"""Called with observations, their number of environments, a mode and a seed; returns a decision: `actions`,
and for training `prev_values` if the policy has values, [B, ...] each."""

COMPARED_FIELDS = ("actions", "prev_values")
ROUNDING_TOLERANCE, HALF_ROUNDING_TOLERANCE = 1e-3, 5e-2
"""Absolute and relative tolerances for the rounding of kernels at other batch sizes, in 32 and in 16 bits."""
COMPARED_ELEMENTS = 2**16
"""The most elements of a buffer that are compared: to copy and compare whole buffers takes seconds a GB."""
NO_MEMORY = "policies have no memory here (docs/extending.md, a model)"


class Buffers:
    """The published buffers of a policy, with their content after its weights were loaded.

    Of a large buffer evenly spaced elements are compared: statistics of acting change nearly all elements.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._written = self._present(copy=True)

    def note(self) -> None:
        """Remember the buffers; call this after loading the weights of a version."""
        self._written = self._present(copy=True)

    def check(self) -> None:
        """Check that acting has not changed the buffers.

        Raises:
            RuntimeError: acting has changed a buffer; the next version would overwrite the change.
        """
        present = self._present()
        changed = [name for name, each in self._written.items() if not _same(each, present.get(name))]
        if changed:
            names = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
            raise RuntimeError(
                f"the policy's buffer {names} has changed while the policy acted: the learner, which "
                "publishes the weights, does not know it, and the next version overwrites it. Keep such "
                "statistics in the environment, or fixed, or register a mere cache with persistent=False"
            )

    def _present(self, *, copy: bool = False) -> dict[str, torch.Tensor]:
        # Buffers in the state dict are published; others are caches, which no version overwrites.
        published = self._module.state_dict().keys()
        named = {name: buffer for name, buffer in self._module.named_buffers() if name in published}
        some = {name: _some_elements(buffer.detach()) for name, buffer in named.items()}
        return {name: each.clone() if copy else each for name, each in some.items()}


class FirstLook:
    """Examines the policy of a rank on the first observations of training."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say: Callable[[str], object] | None = say

    def __call__(
        self, decide: Decide, observations: list[Mapping[str, Any]], size: int, *, module: nn.Module | None
    ) -> None:
        """Pass the sentences of `examine` to `say`, in the first call only."""
        say, self._say = self._say, None
        if say is not None:
            for remark in examine(decide, observations, size, module=module):
                say(remark)


# A list, not a generator: inside a generator a policy's StopIteration would become a RuntimeError.
def examine(
    decide: Decide, observations: list[Mapping[str, Any]], size: int, *, module: nn.Module | None
) -> list[str]:
    """Return a sentence for each way that a policy breaks the rule of this module on `observations`.

    Args:
        observations: the observations of some requests, with `size` environments in all.
        module: the policy, if it is a module, to check its buffers.

    Raises:
        RuntimeError: acting has changed published buffers.
    """
    buffers = None if module is None else Buffers(module)
    tolerance = HALF_ROUNDING_TOLERANCE if module is not None and _is_half(module) else ROUNDING_TOLERANCE
    first, again = [decide(_fresh(observations), size, "train", 1) for _ in range(2)]
    fields = _different_names(first, again, tolerance)
    if buffers is not None:
        buffers.check()
    if fields:
        return [
            f"the policy gives other {' and '.join(fields)} in a second pass, with the random generators in "
            f"the same state: it keeps a memory, or draws from a generator of its own; {NO_MEMORY}"
        ]
    names = _other_in_company(decide, observations, size, tolerance) if size > 1 else []
    if buffers is not None:
        buffers.check()
    if not names:
        return []
    return [
        f"the policy gives other {' and '.join(names)} for an observation alone than in a batch of {size}: "
        "a part of it depends on the whole batch (BatchNorm in training mode, statistics of the batch), so "
        "that its actions depend on the other observations in the forward pass"
    ]


def _other_in_company(
    decide: Decide, observations: list[Mapping[str, Any]], size: int, tolerance: float
) -> list[str]:
    """Return the deterministic fields that differ between a pass over one observation and over the batch."""
    for mode in ("train", "eval"):
        whole, other = [decide(_fresh(observations), size, mode, chance) for chance in (1, 2)]
        certain = [
            name for name in COMPARED_FIELDS if _has(whole, other, name) and _close(whole, other, name, 0.0)
        ]
        single = []
        for row in (0, size - 1):
            alone = decide(_fresh([items(merge(observations), [row])]), 1, mode, 1)
            expected = {name: whole[name][row : row + 1] for name in certain}
            single.append(set(_different_names(expected, alone, tolerance)))
        # Fields must differ in both rows: in a single row, rounding may have changed the choice between two
        # tokens.
        if names := sorted(set.intersection(*single)):
            return names
    return []


def _different_names(one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float) -> list[str]:
    names = [name for name in COMPARED_FIELDS if _has(one, other, name)]
    return [name for name in names if not _close(one, other, name, tolerance)]


def _has(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    return isinstance(one.get(name), torch.Tensor) and isinstance(other.get(name), torch.Tensor)


def _close(one: Mapping[str, Any], other: Mapping[str, Any], name: str, tolerance: float) -> bool:
    a, b = (torch.as_tensor(each[name]).detach().float().cpu() for each in (one, other))
    return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _some_elements(buffer: torch.Tensor) -> torch.Tensor:
    """Return the buffer, or evenly spaced elements of it, [`COMPARED_ELEMENTS`] or fewer."""
    if buffer.numel() <= COMPARED_ELEMENTS:
        return buffer
    return buffer.reshape(-1)[:: -(-buffer.numel() // COMPARED_ELEMENTS)]


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or other.shape != one.shape:
        return False
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other.to(one.device, one.dtype)))


def _is_half(module: nn.Module) -> bool:
    return any(each.is_floating_point() and each.itemsize < 4 for each in module.parameters())


def _fresh(observations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return copies, as a policy may write into its inputs."""
    return [copy.deepcopy(dict(observation)) for observation in observations]


@contextmanager
def drawing_by(chance: int) -> Iterator[None]:
    """Seed the random generators of torch, numpy and Python by `chance` inside the block, then restore their
    states.

    Other threads of this process must draw no random numbers meanwhile.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(chance)
        np.random.seed(chance)
        random.seed(chance)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def whole_decision(actions: torch.Tensor, result: Mapping[str, Any]) -> Tree:
    """Return copies of the fields of a decision that `examine` compares."""
    values = result.get("prev_values")
    return {
        "actions": actions.detach().clone(),
        "prev_values": values.detach().clone() if isinstance(values, torch.Tensor) else None,
    }
