"""Estimates the memory of learner and inference on each GPU, from a config, without loading the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.core.footprint import LearnerFootprint, Strategy
from rlinf_async.hosts.footprints import (
    UNKNOWN_SIZE,
    ModelSize,
    bytes_of,
    checkpoint_size,
    facts,
)
from rlinf_async.hosts.judge.presence import is_declared, naming, parameters
from rlinf_async.hosts.kit.building import parameters_of
from rlinf_async.hosts.rlinf.compat import without_compiler
from rlinf_async.hosts.rlinf.models import CAST_BYTES, VLM_PREFIX
from rlinf_async.hosts.rlinf.placement import Machines, occupancy
from rlinf_async.hosts.rlinf.settings import RLinfSettings

MODEL_SECTION = "actor.model"
DEFAULT_BYTES = 4
"""Bytes per parameter where neither config nor checkpoint names a precision: the most that it may be."""


def footprints(
    cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines, *, gpu_memory: float | None = None
) -> dict[str, Any]:
    """Plain data for `explain`: bytes by part on every kind of GPU that has a policy, and what a GPU has.

    Args:
        cfg: RLinf's config as plain data.
        gpu_memory: gigabytes of one GPU, where it is not one of this machine's.
    """
    section = cfg["actor"]["model"]
    model = model_size(section) or UNKNOWN_SIZE
    model = replace(model, stored=CAST_BYTES.get(section["model_type"], model.stored))
    leaves = {
        role: settings.takes_turns and bool(lookup(cfg, f"{component}.enable_offload"))
        for role, component in {"learner": "actor", "inference": "rollout"}.items()
    }
    return facts(
        settings,
        model=model,
        learner=learner_footprint(cfg, settings, model),
        inference=model.parameters * _bytes(lookup(cfg, "rollout.model.precision"), model),
        places=_kinds(cfg, machines),
        gpu_memory=gpu_memory,
        leaves=leaves,
        lora=_is_adapted(section),
    )


def learner_footprint(cfg: Mapping[str, Any], settings: RLinfSettings, model: ModelSize) -> LearnerFootprint:
    """A learner rank, as `actor.fsdp_config` wraps its model."""
    fsdp = cfg["actor"].get("fsdp_config") or {}
    stored = _bytes(lookup(cfg, "actor.model.precision"), model)
    # FSDP gathers parameters in this type; without one, in that in which they are stored.
    computed = bytes_of(lookup(fsdp, "mixed_precision.param_dtype"), default=stored)
    return LearnerFootprint(
        parameters=model.parameters,
        trainable=0 if _trains_adapters_alone(cfg["actor"]["model"]) else model.parameters - model.frozen,
        stored=stored,
        computed=computed,
        ranks=settings.plan.learner_ranks,
        strategy=_strategy(fsdp),
        accumulates=bool(fsdp.get("enable_gradient_accumulation")) and settings.micro_batches_per_step > 1,
        on_cpu=bool(fsdp.get("cpu_offload", False)),
    )


def model_size(model: Mapping[str, Any]) -> ModelSize | None:
    """By the headers of the checkpoint, or of a model that needs none by building it without memory."""
    path, kind = model.get("model_path"), str(model["model_type"])
    if not path:
        return _built_size(model)
    freezes = bool(lookup(model, f"{kind}.train_expert_only")) or _is_adapted(model)
    return checkpoint_size(Path(str(path)), frozen=VLM_PREFIX.get(kind) if freezes else None)


def _is_adapted(model: Mapping[str, Any]) -> bool:
    return bool(model.get("is_lora", False))


def _trains_adapters_alone(model: Mapping[str, Any]) -> bool:
    """Return True if RLinf trains nothing of the checkpoint. New adapters of a model of `VLM_PREFIX` are its
    VLM's, and its expert is trained whole; those of `lora_path` freeze all else.
    """
    return _is_adapted(model) and (
        str(model["model_type"]) not in VLM_PREFIX or model.get("lora_path") is not None
    )


def _built_size(model: Mapping[str, Any]) -> ModelSize | None:
    """Return the size of RLinf's MLP policy and of models of `rlinf_async.models`, which are built of
    their config alone.
    """
    if model["model_type"] == "mlp_policy":
        with without_compiler(), naming(model, key=MODEL_SECTION):
            from rlinf_async.hosts.rlinf.borrowed import mlp_policy

            count = parameters_of(mlp_policy, model, small=True)
    elif is_declared(model):
        count = parameters(model, key=MODEL_SECTION)
    else:
        return None
    return ModelSize(parameters=count, source="counted")


def _strategy(fsdp: Mapping[str, Any]) -> Strategy:
    if fsdp.get("strategy") == "fsdp2":
        return "full_shard" if fsdp.get("reshard_after_forward", True) else "shard_grad_op"
    strategy = str(fsdp.get("sharding_strategy", "full_shard"))
    if strategy in ("no_shard", "shard_grad_op"):
        return strategy  # type: ignore[return-value]
    return "full_shard"


def _bytes(precision: object, model: ModelSize) -> int:
    return bytes_of(precision, default=model.stored or DEFAULT_BYTES)


def _kinds(cfg: Mapping[str, Any], machines: Machines) -> Counter[tuple[int, int]]:
    """Return the number of GPUs for each pair of numbers of learner ranks and inference ranks."""
    places = occupancy(cfg["cluster"], machines)
    gpus = {*places["actor"], *places["rollout"]}
    return Counter((places["actor"][gpu], places["rollout"][gpu]) for gpu in gpus)
