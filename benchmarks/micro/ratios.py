"""What measuring ratios costs a learner rank beside the forward passes: copies of what it trains."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import RatioProbe
from rlinf_async.core.tensors import Tree

TENSORS = 250
BYTES = 10**9
"""Of one version, as float32."""


def weights(device: str) -> list[torch.Tensor]:
    """Of as many bytes as `BYTES`, in as many tensors as a model of that size has."""
    return [torch.zeros(BYTES // 4 // TENSORS, device=device) for _ in range(TENSORS)]


def seconds_per_batch(device: str, max_staleness: int, batches: int) -> tuple[list[float], int]:
    """Seconds of each batch in steady state, of CPU time where that copies; and bytes that lie on the CPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    parameters = weights(device)
    past = PastWeights(lambda: parameters, keep=max_staleness + 1)

    def score(inputs: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1), torch.zeros(1)

    probe = RatioProbe(past, score, max_staleness=max_staleness)
    past.remember(0)
    seen = []
    for batch in range(max_staleness + batches):
        past.changed()
        began = clock()
        probe.begin(batch)
        probe.add({"x": torch.zeros(1)}, torch.tensor([0]), (torch.zeros(1), torch.zeros(1)))
        probe.finish()
        seen.append(clock() - began)
    held = sum(tensor.nbytes for copy in (*past._copies.values(), *past._spare) for tensor in copy)
    return seen[max_staleness:], held


def measure(rounds: int) -> dict[str, Any]:
    """By staleness; on a CUDA device where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {}
    for max_staleness in (1, 2, 4):
        seconds, held = seconds_per_batch(device, max_staleness, rounds)
        found[str(max_staleness)] = {
            "seconds_per_batch": round(statistics.median(seconds), 3),
            "cpu_gigabytes": round(held / 1e9, 2),
        }
    return {"by_max_staleness": found, "device": device, "weight_gigabytes": BYTES / 1e9, "rounds": rounds}
