"""Images that a policy returns unchanged, which stay with their env worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import Tree


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
        # By content, as the policy may have copied an image. Cropped or cast images are no echo.
        if torch.equal(value, pixels)  # type: ignore[arg-type]
    }
    return {name: value for name, value in inputs.items() if name not in echoes}, echoes


def with_echoes(inputs: Tree, echoes: Mapping[str, str], observation: Mapping[str, Any]) -> Tree:
    """Put back the images that `without_echoes` left out of `inputs`, as copies from `observation`."""
    return {**inputs, **{name: observation[picture].clone() for name, picture in echoes.items()}}


def _is_picture(value: object) -> bool:
    """Return True for uint8 tensors on the CPU. Others are small, or differ from the observation's tensor in
    device or type.
    """
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.device.type == "cpu"
