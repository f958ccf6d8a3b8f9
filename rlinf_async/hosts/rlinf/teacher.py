"""The teacher of on-policy distillation, which RLinf's actor builds and moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, map_tensors

NUMBERS = "numbers"
"""The only input of numbered samples."""


class NumberedTeacher:
    """A teacher that finds the inputs of samples by their numbers in `HeldInputs`."""

    def __init__(self, teacher: torch.nn.Module, inputs: HeldInputs) -> None:
        self._teacher, self._inputs = teacher, inputs

    def to(self, device: Any) -> None:
        self._teacher.to(device)

    def __call__(self, *, forward_inputs: Tree, **kwargs: Any) -> Any:
        """Score samples; `forward_inputs` has their numbers, [N], on the device of the scores."""
        numbers = forward_inputs[NUMBERS]
        assert isinstance(numbers, torch.Tensor)
        inputs = map_tensors(lambda tensor: tensor.to(numbers.device), self._inputs.copied(numbers))
        return self._teacher(forward_inputs=inputs, **kwargs)


@contextmanager
def numbered(rollout: Tree) -> Iterator[None]:
    """Put the numbers of samples into a dictionary inside the block, as RLinf cuts inputs by name."""
    numbers = rollout[INPUTS_FIELD]
    rollout[INPUTS_FIELD] = {NUMBERS: numbers}
    try:
        yield
    finally:
        rollout[INPUTS_FIELD] = numbers


@contextmanager
def without_the_student(actor: Any) -> Iterator[None]:
    """Move the student and its optimizer off the accelerator inside the block, by RLinf's own calls.

    RLinf's actor asserts that they are off, and that its config offloads. With levels that overlap, the
    student is on the accelerator at all other times.
    """
    offloads, actor.enable_offload = actor.enable_offload, True
    with actor.spans.span("offload"):
        actor.offload_optimizer()
        actor.offload_param_and_grad()
    try:
        yield
    finally:
        actor.enable_offload = offloads
        with actor.spans.span("offload"):
            actor.load_param_and_grad(actor.device)
            actor.load_optimizer(actor.device)
