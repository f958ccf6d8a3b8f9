"""Estimates the memory of learner and inference on each GPU, from a config, without loading the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.core.footprint import LearnerFootprint, Strategy
from rlinf_async.core.precision import bytes_of
from rlinf_async.hosts.footprints import UNKNOWN_SIZE, ModelSize, checkpoint_size, facts
from rlinf_async.hosts.kit.building import parameters_of
from rlinf_async.hosts.kit.policy_size import is_declared, naming, parameters
from rlinf_async.hosts.rlinf.models import CAST_BYTES, VLM_PREFIX
from rlinf_async.hosts.rlinf.placement import Machines, occupancy
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings

MODEL_SECTION = "actor.model"
DEFAULT_BYTES = 4
"""Bytes per parameter if neither config nor checkpoint names a precision: the largest possible."""


def footprints(
    cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines, *, gpu_memory: float | None = None
) -> dict[str, Any]:
    """Return, as plain data, the bytes of every part on each kind of GPU with a policy, and a GPU's capacity.

    Args:
        cfg: RLinf's config as plain data.
        gpu_memory: gigabytes of one GPU; None for a GPU of this machine.
    """
    estimate = estimated(cfg, settings)
    leaves = {
        role: settings.takes_turns and bool(lookup(cfg, f"{component}.enable_offload"))
        for role, component in {"learner": "actor", "inference": "rollout"}.items()
    }
    return facts(
        settings,
        model=estimate.model,
        learner=estimate.learner,
        inference=estimate.inference,
        places=_kinds(cfg, machines),
        gpu_memory=gpu_memory,
        leaves=leaves,
        lora=_is_adapted(cfg["actor"]["model"]),
    )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The memory of one rank of each kind; activations are not counted."""

    model: ModelSize
    learner: LearnerFootprint
    inference: int
    """Bytes of an inference rank."""


def estimated(cfg: Mapping[str, Any], settings: RLinfSettings) -> Estimate:
    """Return the estimates of `cfg` (plain data); of `UNKNOWN_SIZE` if the model's size is not known."""
    section = cfg["actor"]["model"]
    model = model_size(section) or UNKNOWN_SIZE
    model = replace(model, stored=CAST_BYTES.get(section["model_type"], model.stored))
    return Estimate(
        model=model,
        learner=learner_footprint(cfg, settings, model),
        inference=model.parameters * _bytes(lookup(cfg, "rollout.model.precision"), model),
    )


def teacher_remark(cfg: Mapping[str, Any]) -> str:
    """Return a remark on where the teacher of on-policy distillation is in memory."""
    section = {**cfg["actor"]["model"], **cfg["rollout"]["expert_model"]}
    size = model_size(section)
    if size is None:
        much = ""
    else:
        much = f" ({size.parameters * _bytes(section.get('precision'), size) / 1e9:.1f} GB)"
    return (
        f"every learner rank holds the whole teacher{much} in the machine's memory; while it scores a "
        "batch it is on the accelerator, which the student's weights and optimizer leave meanwhile"
    )


def learner_footprint(cfg: Mapping[str, Any], settings: RLinfSettings, model: ModelSize) -> LearnerFootprint:
    """Return the footprint of a learner rank with the model wrapped by `actor.fsdp_config`."""
    fsdp = cfg["actor"].get("fsdp_config") or {}
    stored = _bytes(lookup(cfg, "actor.model.precision"), model)
    # FSDP gathers parameters in this type; without one, in the type in storage.
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
    """Return the size from the checkpoint's headers; a model without a checkpoint is built without memory."""
    path, kind = model.get("model_path"), str(model["model_type"])
    if not path:
        return _built_size(model)
    freezes = bool(lookup(model, f"{kind}.train_expert_only")) or _is_adapted(model)
    return checkpoint_size(Path(str(path)), frozen=VLM_PREFIX.get(kind) if freezes else None)


def _is_adapted(model: Mapping[str, Any]) -> bool:
    return bool(model.get("is_lora", False))


def _trains_adapters_alone(model: Mapping[str, Any]) -> bool:
    """Return True if RLinf trains only adapters.

    New adapters of a model in `VLM_PREFIX` are in its VLM, and its whole action expert is trained as well;
    adapters from `lora_path` freeze all other weights.
    """
    return _is_adapted(model) and (
        str(model["model_type"]) not in VLM_PREFIX or model.get("lora_path") is not None
    )


def _built_size(model: Mapping[str, Any]) -> ModelSize | None:
    """Return the size of RLinf's MLP policy and of models of `rlinf_async.models`, built from their config;
    else None.
    """
    if model["model_type"] == "mlp_policy":
        with naming(model, key=MODEL_SECTION):
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
