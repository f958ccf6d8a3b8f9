"""Pictures that a policy hands back with its answer: the asker has them, so they need not travel again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import Tensors


def without_echoes(inputs: Tensors, observation: Mapping[str, Any]) -> tuple[Tensors, dict[str, str]]:
    """Leave out the `inputs` of a policy that are the very pictures of an observation.

    Returns:
        What is left; and, for each name that is not, the name of its picture.
    """
    pictures = {name: pixels for name, pixels in observation.items() if _is_picture(pixels)}
    echoes = {
        name: picture
        for name, value in inputs.items()
        if _is_picture(value)
        for picture, pixels in pictures.items()
        if torch.equal(value, pixels)
    }
    return {name: value for name, value in inputs.items() if name not in echoes}, echoes


def with_echoes(inputs: Tensors, echoes: Mapping[str, str], observation: Mapping[str, Any]) -> Tensors:
    """Put copies of the pictures that `without_echoes` left out of `inputs` back, from `observation`."""
    return {**inputs, **{name: observation[picture].clone() for name, picture in echoes.items()}}


def _is_picture(value: object) -> bool:
    """Bytes on the CPU. Others are small, or differ from what was shown by their place or type."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.device.type == "cpu"
