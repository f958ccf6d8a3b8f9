"""Estimates the memory of a learner rank and an inference rank, from a config, without loading the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.footprint import LearnerFootprint
from rlinf_async.core.nested import lookup
from rlinf_async.hosts.footprints import UNKNOWN_SIZE, facts
from rlinf_async.hosts.kit.models import is_declared, parameters
from rlinf_async.hosts.model_size import ModelSize
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.hosts.verl.sizes import ACTOR_SECTION

BYTES_OF_TYPE = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
FSDP = f"{ACTOR_SECTION}.fsdp_config"


def footprints(
    cfg: Mapping[str, Any], settings: VerlSettings, *, gpu_memory: float | None = None
) -> dict[str, Any]:
    """Plain data for `explain`: learner ranks and inference ranks have accelerators of their own.

    Args:
        cfg: veRL's config as plain data.
        gpu_memory: gigabytes of one accelerator, where it is not one of this machine's.
    """
    model = _model_size(cfg)
    learner = _learner(cfg, settings, model)
    # Without a precision the builder decides, which may be as wide as what the learner steps.
    inference = _bytes(cfg, "vla.model.precision", default=learner.stored)
    plan = settings.plan
    return facts(
        settings,
        model=model,
        learner=learner,
        inference=model.parameters * inference,
        places={(1, 0): plan.learner_ranks, (0, 1): plan.inference_ranks},
        gpu_memory=gpu_memory,
        leaves={"learner": False, "inference": False},
        lora=settings.adapters is not None,
    )


def _model_size(cfg: Mapping[str, Any]) -> ModelSize:
    section = lookup(cfg, "vla.model")
    if not is_declared(section):
        return UNKNOWN_SIZE
    return ModelSize(parameters=parameters(section, key="vla.model"), source="counted")


def _learner(cfg: Mapping[str, Any], settings: VerlSettings, model: ModelSize) -> LearnerFootprint:
    """Return what veRL's FSDP2 keeps of a policy that is trained whole, or beside its adapters not at all."""
    ranks, sharing = settings.plan.learner_ranks, int(lookup(cfg, f"{FSDP}.fsdp_size") or -1)
    return LearnerFootprint(
        parameters=model.parameters,
        trainable=0 if settings.adapters else model.parameters,
        stored=_bytes(cfg, f"{FSDP}.model_dtype", default=4),
        computed=_bytes(cfg, f"{FSDP}.mixed_precision.param_dtype", default=2),
        ranks=min(ranks, sharing) if sharing > 0 else ranks,
        strategy="shard_grad_op" if lookup(cfg, f"{FSDP}.reshard_after_forward") is False else "full_shard",
        accumulates=bool(lookup(cfg, f"{FSDP}.use_no_sync_for_gradient_accumulation"))
        and settings.micro_batches_per_step > 1,
    )


def _bytes(cfg: Mapping[str, Any], key: str, *, default: int) -> int:
    return BYTES_OF_TYPE.get(str(lookup(cfg, key)), default)
