"""Rows of `explain` about the memory of accelerators, for a reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.config import MAX_COMPARED_BYTES

BILLION = 10**9
GIGABYTE = 10**9
NOT_COUNTED = "activations, gathered layers, transport buffers, CUDA contexts and simulators come on top"


def rows(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`memory` of a host's `explain`, which `hosts.rlinf.footprints` makes, as rows of its table."""
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
    return "" if kind["fits"] else ", which is not enough"


def _billions(count: int) -> str:
    return f"{count / BILLION:.3g} billion" if count >= BILLION else f"{count / 10**6:.3g} million"
