"""Whether a policy of `rlinf_async.models` can be built of its section, before Ray starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.hosts.reasons import Reason

MODELS = "rlinf_async.models"


def build_without_memory(build: Callable[..., Any], section: Mapping[str, Any], *, key: str) -> Any:
    """The policy that `build` makes of `section`, which stands at `key`, with parameters that hold nothing.

    Raises:
        ValueError: it cannot be made, with what the builder has said.
    """
    try:
        with torch.device("meta"):
            return build(OmegaConf.create(dict(section)), torch.float32)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        name = section.get("model_type")
        raise ValueError(f"{key} does not make a {name}: {type(error).__name__}: {said}") from error


def unbuildable(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """That a policy which a package declares cannot be built of its section; nothing of other models."""
    entries = {entry.name: entry for entry in entry_points(group=MODELS)}
    entry = entries.get(str(section.get("model_type")))
    if entry is None or section.get("model_path"):
        return  # with a checkpoint the builder may read gigabytes
    try:
        build_without_memory(entry.load(), section, key=key)
    except ImportError as error:
        yield Reason(f"{key}.model_type={entry.name} cannot be imported: {error}")
    except ValueError as error:
        yield Reason(str(error))
