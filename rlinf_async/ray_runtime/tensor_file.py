"""Nested tensors in a file that can be read without running anything: safetensors, and JSON for the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rlinf_async.observe.files import opened

TREE_KEY = "tree"


def write_tensors(path: Path, value: object) -> None:
    """Write nested dicts (with texts for keys), lists and tuples of tensors, arrays, texts and numbers.

    Raises:
        TypeError: there is something else in it.
        OSError: the disk is full, or the file cannot be written.
    """
    tensors: list[torch.Tensor] = []
    tree = json.dumps(_described(value, tensors))
    try:
        save_file({str(n): tensor for n, tensor in enumerate(tensors)}, path, metadata={TREE_KEY: tree})
    except SafetensorError as error:  # the library has an error of its own for what the system says
        raise OSError(f"{path.name} cannot be written: {error}") from error


def read_tensors(path: Path) -> Any:
    """Read the value that `write_tensors` has written, into memory of its own.

    Raises:
        OSError, ValueError: the file is not there, a link, no file, cut off or damaged.
    """
    try:
        with opened(path) as number, safe_open(f"/proc/self/fd/{number}", framework="pt") as file:
            tree = json.loads((file.metadata() or {})[TREE_KEY])
            return _built(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error


def _described(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The shape of `value` as JSON: `[kind, content]`, in which tensors are their places in `tensors`."""
    if isinstance(value, torch.Tensor):
        # A copy, as the library refuses tensors that share memory.
        tensors.append(value.detach().cpu().contiguous().clone())
        return ["tensor", len(tensors) - 1]
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return ["texts", value.tolist()]
        return ["array", _described(torch.from_numpy(value.copy()), tensors)]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return ["dict", {name: _described(item, tensors) for name, item in value.items()}]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_described(item, tensors) for item in value]]
    if value is None or isinstance(value, str | bool | int | float):
        return ["plain", value]
    raise TypeError(f"a {type(value).__name__} is neither a tensor nor plain data")


def _built(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    kind, content = tree
    if kind == "tensor":
        return tensors[str(content)]
    if kind == "array":
        return _built(content, tensors).numpy()
    if kind == "texts":
        return np.array(content)
    if kind == "dict":
        return {name: _built(item, tensors) for name, item in content.items()}
    if kind in ("list", "tuple"):
        items = [_built(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content
