"""What learner and inference take on each GPU, estimated from a config without loading the model."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.config import COMPARED_BYTES
from rlinf_async.core.footprint import LearnerFootprint, Strategy, peak, together
from rlinf_async.core.nested import lookup
from rlinf_async.hosts.rlinf.models import ENTRY_POINTS
from rlinf_async.hosts.rlinf.placement import Machines, occupancy
from rlinf_async.hosts.rlinf.settings import RLinfSettings

BILLION = 10**9
GIGABYTE = 10**9
BYTES = {"bf16": 2, "bf16-mixed": 2, "16": 2, "fp16": 2, "16-mixed": 2, "32": 4, "fp32": 4, "32-true": 4}
"""RLinf's words for a precision, as bytes per parameter."""
UNSAID = 4
"""Bytes per parameter where neither config nor checkpoint names a precision: the most that it may be."""
NOT_COUNTED = "activations, gathered layers, transport buffers, CUDA contexts and simulators come on top"


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """How many parameters a model has, and who says so."""

    parameters: int
    source: str
    stored: int | None = None
    """Bytes per parameter in its checkpoint, where that was read."""


def footprints(
    cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines, *, gpu_memory: float | None = None
) -> dict[str, Any]:
    """Plain data for `explain`: bytes by part on every kind of GPU that has a policy, and what a GPU has.

    Args:
        cfg: RLinf's config as plain data.
        gpu_memory: gigabytes of one GPU, where it is not one of this machine's.
    """
    size = model_size(cfg["actor"]["model"])
    model = size or ModelSize(parameters=BILLION, source="unknown: the numbers are per billion parameters")
    footprint = learner_footprint(cfg, settings, model)
    learner = footprint.parts()
    # The present weights are put beside those that are remembered while they are away for an anchor.
    copies = settings.remembered_versions(footprint.trained if size else 0) + settings.anchors_in_the_past
    inference = model.parameters * _bytes(lookup(cfg, "rollout.model.precision"), model)
    capacity = gpu_memory * GIGABYTE if gpu_memory is not None else _own_capacity()
    leaving = {
        f"{role}_leaves": settings.takes_turns and bool(lookup(cfg, f"{part}.enable_offload"))
        for role, part in {"learner": "actor", "inference": "rollout"}.items()
    }
    kinds = [
        {
            "gpus": count,
            "learner_ranks": learners,
            "inference_ranks": policies,
            "bytes": parts,
            "total": (total := peak(parts, **leaving)),
            "fits": None if capacity is None or size is None else total <= capacity,
        }
        for (learners, policies), count in sorted(_kinds(cfg, machines).items(), reverse=True)
        if (parts := together(learner, inference, learners=learners, policies=policies))
    ]
    return {
        "parameters": None if size is None else size.parameters,
        "parameters_from": model.source,
        "gpu_bytes": capacity,
        "per_gpu": kinds,
        "in_turn": any(leaving.values()),
        "remembered": copies,
        "remembered_bytes": copies * footprint.trained,
        "compares": settings.asynchrony.off_policy and settings.asynchrony.train.measure_ratios,
        "lora": bool(cfg["actor"]["model"].get("is_lora", False)),
    }


def learner_footprint(cfg: Mapping[str, Any], settings: RLinfSettings, model: ModelSize) -> LearnerFootprint:
    """A learner rank, as `actor.fsdp_config` wraps its model."""
    fsdp = cfg["actor"].get("fsdp_config") or {}
    stored = _bytes(lookup(cfg, "actor.model.precision"), model)
    computed = BYTES.get(str(lookup(fsdp, "mixed_precision.param_dtype")), stored)
    frozen = bool(cfg["actor"]["model"].get("is_lora", False))
    return LearnerFootprint(
        parameters=model.parameters,
        trainable=0 if frozen else model.parameters,
        stored=stored,
        computed=computed,
        ranks=settings.plan.learner_ranks,
        strategy=_strategy(fsdp),
        accumulates=bool(fsdp.get("enable_gradient_accumulation")) and settings.micro_batches_per_step > 1,
        on_cpu=bool(fsdp.get("cpu_offload", False)),
    )


def model_size(model: Mapping[str, Any]) -> ModelSize | None:
    """By the headers of the checkpoint, or of a model that needs none by building it without memory."""
    path = model.get("model_path")
    if path:
        return _checkpoint_size(Path(str(path)))
    return _built_size(model)


def _checkpoint_size(folder: Path) -> ModelSize | None:
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


def _built_size(model: Mapping[str, Any]) -> ModelSize | None:
    """Of RLinf's MLP policy and of models of `rlinf_async.models`, which are built of their config alone."""
    kind = str(model["model_type"])
    builders = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if kind == "mlp_policy":
        from rlinf.models.embodiment.mlp_policy import get_model as build
    elif kind in builders:
        build = builders[kind].load()
    else:
        return None
    with torch.device("meta"):
        built = build(OmegaConf.create(dict(model)), torch.float32)
    return ModelSize(parameters=sum(each.numel() for each in built.parameters()), source="counted")


def _strategy(fsdp: Mapping[str, Any]) -> Strategy:
    if fsdp.get("strategy") == "fsdp2":
        return "full_shard" if fsdp.get("reshard_after_forward", True) else "shard_grad_op"
    strategy = str(fsdp.get("sharding_strategy", "full_shard"))
    if strategy in ("no_shard", "shard_grad_op"):
        return strategy  # type: ignore[return-value]
    return "full_shard"


def _bytes(precision: object, model: ModelSize) -> int:
    return BYTES.get(str(precision), model.stored or UNSAID)


def _kinds(cfg: Mapping[str, Any], machines: Machines) -> Counter[tuple[int, int]]:
    """How many GPUs have so many learner ranks and inference ranks."""
    places = occupancy(cfg["cluster"], machines)
    gpus = {*places["actor"], *places["rollout"]}
    return Counter((places["actor"][gpu], places["rollout"][gpu]) for gpu in gpus)


def _own_capacity() -> float | None:
    return float(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def rows(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `footprints` found, for a reader."""
    known = memory["parameters"] is not None
    count = f"{_billions(memory['parameters'])} parameters: {memory['parameters_from']}" if known else None
    lines = [("memory", count or memory["parameters_from"])]
    unit = "GB" if known else "GB per billion parameters"
    by_size = memory["compares"] == "auto" and not known
    for kind in memory["per_gpu"]:
        parts = ", ".join(f"{name} {size / GIGABYTE:.3g}" for name, size in kind["bytes"].items())
        at_once = "at most at a time" if memory["in_turn"] else ""
        text = f"{parts}: {kind['total'] / GIGABYTE:.3g} {unit} {at_once}".rstrip()
        if memory["gpu_bytes"] is not None:
            text += f" of {memory['gpu_bytes'] / GIGABYTE:.3g} GB{_verdict(kind, memory['gpu_bytes'])}"
        lines.append((f"  each of {kind['gpus']}", text))
    if memory["remembered"]:
        size = f"{memory['remembered_bytes'] / GIGABYTE:.3g} {unit}"
        unless = f", none of them to measure ratios above {COMPARED_BYTES / GIGABYTE:g} GB" if by_size else ""
        lines.append(("  CPU, a learner", f"{memory['remembered']} copies of what it trains: {size}{unless}"))
    lora = "; adapters, their gradients and moments too" if memory["lora"] else ""
    return [*lines, ("  beside it", f"{NOT_COUNTED}{lora}")]


def _verdict(kind: Mapping[str, Any], capacity: float) -> str:
    if kind["fits"] is None:
        return f", which {capacity / max(1, kind['total']):.3g} billion parameters fill"
    return "" if kind["fits"] else ", which is not enough"


def _billions(count: int) -> str:
    return f"{count / BILLION:.3g} billion" if count >= BILLION else f"{count / 10**6:.3g} million"
