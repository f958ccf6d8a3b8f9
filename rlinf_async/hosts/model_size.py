"""The number of parameters of a policy, read from its checkpoint without loading it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000
"""Most bytes of a safetensors file's header, by the library's own limit."""


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The number of parameters of a model, and the source of that number."""

    parameters: int
    source: str
    stored: int | None = None
    """Bytes per parameter in its checkpoint, where that was read."""
    frozen: int = 0
    """Parameters that are known not to be trained."""


def checkpoint_size(folder: Path, *, frozen: str | None = None) -> ModelSize | None:
    """By the headers of the safetensors files in `folder`; None where there are none.

    Args:
        frozen: what the names of parameters that are not trained have in them.
    """
    headers = [_header(file) for file in sorted(folder.glob("*.safetensors"))]
    tensors = {name: entry for header in headers for name, entry in header.items() if name != "__metadata__"}
    if not tensors:
        return None
    counts = {name: math.prod(entry["shape"]) for name, entry in tensors.items()}
    parameters = sum(counts.values())
    stored = sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors.values())
    return ModelSize(
        parameters=parameters,
        source=f"the checkpoint in {folder}",
        stored=-(-stored // max(1, parameters)),
        frozen=sum(count for name, count in counts.items() if frozen and frozen in name),
    )


def _header(file: Path) -> dict[str, Any]:
    """The names, shapes and places of the tensors in a safetensors file.

    It begins with a length of eight bytes, and JSON of that length.

    Raises:
        ValueError: it does not.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{file} begins with a length of {length:,}, which no safetensors file has")
        header: dict[str, Any] = json.loads(opened.read(length))
    return header
