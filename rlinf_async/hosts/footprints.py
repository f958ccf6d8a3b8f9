"""The accelerator memory that a run needs, for `explain`: as plain data and as rows of its table.

The number of parameters of a policy is read from its checkpoint, without loading it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.config import MAX_COMPARED_BYTES
from rlinf_async.core.footprint import LearnerFootprint, accelerator_bytes, peak
from rlinf_async.core.gpu_shares import GIGABYTE, size_in_words
from rlinf_async.loops.run_settings import RunSettings

BILLION = 10**9
MEGABYTE = 10**6
PUBLISHED_VERSIONS = 2
"""Versions of the trained weights that are kept for inference: the newest and the next one."""
MAX_HEADER_BYTES = 100_000_000
"""The largest header of a safetensors file that the library accepts."""
NOT_COUNTED = "activations, gathered layers, transport buffers, CUDA contexts and simulators come on top"


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The number of parameters of a model, and the source of that number."""

    parameters: int
    source: str
    stored: int | None = None
    """Bytes per parameter in the checkpoint; None if no checkpoint was read."""
    frozen: int = 0
    """Parameters that are known not to be trained."""


UNKNOWN_SIZE = ModelSize(parameters=BILLION, source="unknown: the numbers are per billion parameters")


def facts(
    settings: RunSettings,
    *,
    model: ModelSize,
    learner: LearnerFootprint,
    inference: int,
    places: Mapping[tuple[int, int], int],
    gpu_memory: float | None = None,
    leaves: Mapping[str, bool],
    lora: bool = False,
) -> dict[str, Any]:
    """Return the bytes of every part on each kind of accelerator with a policy, and an accelerator's
    capacity.

    Args:
        model: `UNKNOWN_SIZE` if the number of parameters is not known.
        inference: bytes of an inference rank.
        places: {(learner ranks, inference ranks): number of accelerators with so many of each}.
        gpu_memory: gigabytes of one accelerator; None for one of this machine.
        leaves: for `learner` and `inference`, True if it moves off the accelerator while the other works.
        lora: True if adapters are trained; their bytes are not counted.
    """
    has_size = model.source != UNKNOWN_SIZE.source
    copies = settings.remembered_versions(learner.trained if has_size else 0)
    # Weights are sent in the receiver's type, unless the learner's is narrower.
    bytes_each = min(inference // model.parameters, learner.stored)
    capacity = gpu_memory * GIGABYTE if gpu_memory is not None else _own_capacity()
    away = {f"{role}_leaves": leaves[role] for role in ("learner", "inference")}
    kinds = [
        {
            "gpus": count,
            "learner_ranks": learners,
            "inference_ranks": policies,
            # `parts` is bound by the condition below, which is evaluated first.
            "bytes": parts,
            "total": (total := peak(parts, **away)),
            "fits": total <= capacity if has_size and capacity is not None else None,
        }
        for (learners, policies), count in sorted(places.items(), reverse=True)
        if (parts := accelerator_bytes(learner.parts(), inference, learners=learners, policies=policies))
    ]
    return {
        "parameters": model.parameters if has_size else None,
        "parameters_from": model.source,
        "gpu_bytes": capacity,
        "per_gpu": kinds,
        "in_turn": any(leaves.values()),
        "sent_bytes": bytes_each
        * (PUBLISHED_VERSIONS * learner.trainable + model.parameters - learner.trainable),
        "rollouts": rollout_facts(settings),
        "remembered": copies,
        "remembered_bytes": copies * learner.trained,
        "compares": settings.asynchrony.off_policy and settings.asynchrony.advanced.measure_ratios,
        "lora": lora,
    }


def rollout_facts(settings: RunSettings) -> dict[str, int]:
    """Return the most batches in memory at a time, and the policy's inputs of one batch on a learner rank.

    In memory are the batch that trains, and the batches that env workers may complete meanwhile within the
    staleness bound.
    """
    # If values are recomputed, the inputs of the last observation are kept, too.
    each = settings.horizon + settings.asynchrony.recomputes
    trajectories = settings.plan.trajectories_per_batch // settings.plan.learner_ranks
    return {"batches": 1 + settings.asynchrony.max_staleness, "inputs": trajectories * each}


def _own_capacity() -> float | None:
    import torch  # takes a second, and is not needed to explain a run on CPUs

    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def rows(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result of `facts` as rows of `explain`'s table."""
    has_size = memory["parameters"] is not None
    count = f"{_billions(memory['parameters'])} parameters: {memory['parameters_from']}" if has_size else None
    lines = [("memory", count or memory["parameters_from"])]
    unit = "GB" if has_size else "GB per billion parameters"
    by_size = memory["compares"] == "auto" and not has_size
    for kind in memory["per_gpu"]:
        parts = ", ".join(f"{name} {size / GIGABYTE:.3g}" for name, size in kind["bytes"].items())
        at_once = "at most at a time" if memory["in_turn"] else ""
        text = f"{parts}: {kind['total'] / GIGABYTE:.3g} {unit} {at_once}".rstrip()
        if memory["gpu_bytes"] is not None:
            text += f" of {memory['gpu_bytes'] / GIGABYTE:.3g} GB{_verdict(kind, memory['gpu_bytes'])}"
        lines.append((f"  each of {kind['gpus']}", text))
    lines.append(
        ("  shared, a node", f"new weights on their way: {memory['sent_bytes'] / GIGABYTE:.3g} {unit}")
    )
    rollouts = memory["rollouts"]
    inputs = rollouts["batches"] * rollouts["inputs"]
    lines.append(
        (
            "  shared, a learner",
            f"rollouts, {rollouts['batches']} batch{'es' * (rollouts['batches'] > 1)} at most: {inputs:,} "
            f"observations as the policy takes them, {inputs * MEGABYTE / GIGABYTE:.3g} GB per MB of one",
        )
    )
    if memory["remembered"]:
        size = f"{memory['remembered_bytes'] / GIGABYTE:.3g} {unit}"
        unless = (
            f", none of them to measure ratios above {MAX_COMPARED_BYTES / GIGABYTE:g} GB" if by_size else ""
        )
        lines.append(("  CPU, a learner", f"{memory['remembered']} copies of what it trains: {size}{unless}"))
    lora = "; adapters, their gradients and moments too" if memory["lora"] else ""
    return [*lines, ("  beside it", f"{NOT_COUNTED}{lora}")]


def _verdict(kind: Mapping[str, Any], capacity: float) -> str:
    if kind["fits"] is None:
        return f", which {capacity / max(1, kind['total']):.3g} billion parameters fill"
    remainder = f", which leaves {size_in_words(capacity - kind['total'])}"
    return remainder if kind["fits"] else ", which is not enough"


def _billions(count: int) -> str:
    return f"{count / BILLION:.3g} billion" if count >= BILLION else f"{count / 10**6:.3g} million"


def checkpoint_size(folder: Path, *, frozen: str | None = None) -> ModelSize | None:
    """Return the size of the model in `folder`, from the headers of its safetensors files; None without any.

    Args:
        frozen: a part of the names of all parameters that are not trained.
    """
    headers = [_header(file) for file in sorted(folder.glob("*.safetensors"))]
    # `__metadata__` is the only entry of a safetensors header that is not a tensor.
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
    """Return the names, shapes and offsets of the tensors in a safetensors file.

    The file begins with a length in eight bytes, and JSON of that length.

    Raises:
        ValueError: the file begins with something else.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{file} is not a safetensors file: its header would have {length:,} bytes")
        header: dict[str, Any] = json.loads(stream.read(length))
    return header
