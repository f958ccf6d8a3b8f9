"""The sizes of `smol_vla` and its number of parameters, without the slow imports of the policy itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rlinf_async.lab.demo.policies.sizes import check_fields, settings_of

BYTE_TOKENS = 256
"""Number of tokens for the bytes of instructions."""
PATCHES_PER_TOKEN_SIDE = 2
"""Patches of a picture that become one token, in each direction."""


@dataclass(frozen=True)
class SmolVLASettings:
    """Sizes of the policy; a picture is `image_size` pixels square, an instruction at most
    `instruction_length` UTF-8 bytes (the rest is cut off)."""

    state_dim: int
    action_dim: int
    num_action_chunks: int
    image_size: int = 64
    instruction_length: int = 64
    patch_size: int = 8
    vision_width: int = 96
    vision_layers: int = 2
    text_width: int = 128
    text_layers: int = 3
    heads: int = 4
    log_std: float = -1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.image_size % (PATCHES_PER_TOKEN_SIDE * self.patch_size):
            raise ValueError(
                f"image_size={self.image_size} must be a multiple of twice patch_size={self.patch_size}"
            )
        if self.vision_width % self.heads or self.text_width % self.heads:
            raise ValueError(
                f"vision_width={self.vision_width} and text_width={self.text_width} "
                f"must be multiples of heads={self.heads}"
            )

    @property
    def image_tokens(self) -> int:
        return (self.image_size // self.patch_size // PATCHES_PER_TOKEN_SIDE) ** 2

    @property
    def parameters(self) -> int:
        """The number of parameters of the policy."""
        seen, read = self.vision_width, self.text_width
        patches = PATCHES_PER_TOKEN_SIDE**2 * self.image_tokens
        eyes = (3 * self.patch_size**2 + 1 + patches) * seen + self.vision_layers * (8 * seen + 11) * seen
        language = (BYTE_TOKENS + 1) * read + self.text_layers * (10 * read + 2) * read + read
        between = (
            (PATCHES_PER_TOKEN_SIDE**2 * seen) * read
            + (self.state_dim + 1) * read
            + self.num_action_chunks * read
        )
        actions = (read + 1 + self.num_action_chunks) * self.action_dim
        return eyes + 2 * seen + language + between + actions + (read + 1) * (read + 1)


def parameters(section: Mapping[str, Any]) -> int:
    """Return the number of parameters of a model section: an entry point of `rlinf_async.model_sizes`.

    Raises:
        ModuleNotFoundError: the package of the policy's classes is not installed.
        TypeError, ValueError: as of `settings_of`.
    """
    if find_spec("transformers") is None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
    return settings_of(SmolVLASettings, section).parameters
