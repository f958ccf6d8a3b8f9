"""How many parameters a policy has, read from its checkpoint without loading it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """How many parameters a model has, and who says so."""

    parameters: int
    source: str
    stored: int | None = None
    """Bytes per parameter in its checkpoint, where that was read."""


def checkpoint_size(folder: Path) -> ModelSize | None:
    """By the headers of the safetensors files in `folder`; None where there are none."""
    headers = [_header(file) for file in sorted(folder.glob("*.safetensors"))]
    tensors = [entry for header in headers for name, entry in header.items() if name != "__metadata__"]
    if not tensors:
        return None
    parameters = sum(math.prod(entry["shape"]) for entry in tensors)
    stored = sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors)
    return ModelSize(
        parameters=parameters, source=f"the checkpoint in {folder}", stored=-(-stored // max(1, parameters))
    )


def _header(file: Path) -> dict[str, Any]:
    """What a safetensors file says about its tensors: a length of eight bytes, and JSON of that length."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header: dict[str, Any] = json.loads(opened.read(length))
    return header
