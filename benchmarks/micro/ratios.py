"""Cost of `measure_ratios` on a learner rank beside the forward passes: copies of its trained weights."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import RatioProbe
from rlinf_async.core.tensors import Tree

TENSOR_COUNT = 250
VERSION_BYTES = 10**9
"""Bytes of the float32 weights of one version."""


def weights(device: str) -> list[torch.Tensor]:
    """Return `VERSION_BYTES` of weights in `TENSOR_COUNT` tensors, as in a model of that size."""
    return [torch.zeros(VERSION_BYTES // 4 // TENSOR_COUNT, device=device) for _ in range(TENSOR_COUNT)]


def seconds_per_batch(device: str, max_staleness: int, batches: int) -> tuple[list[float], int]:
    """Return the seconds of each batch in steady state, and the bytes of the copies on the CPU.

    Seconds are CPU time if `device` is the CPU, otherwise wall time.
    """
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
    """Measure each `max_staleness`, on a CUDA device if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {}
    for max_staleness in (1, 2, 4):
        seconds, held = seconds_per_batch(device, max_staleness, rounds)
        found[str(max_staleness)] = {
            "seconds_per_batch": round(statistics.median(seconds), 3),
            "cpu_gigabytes": round(held / 1e9, 2),
        }
    return {
        "by_max_staleness": found,
        "device": device,
        "weight_gigabytes": VERSION_BYTES / 1e9,
        "rounds": rounds,
    }
