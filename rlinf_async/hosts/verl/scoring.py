"""Scores by the present policy of actions that were taken, without gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from verl.utils.device import get_device_id

from rlinf_async.core.tensors import Tree, map_tensors
from rlinf_async.hosts.verl.engine import PolicyEngine


@torch.no_grad()
def forward(
    engine: PolicyEngine, parts: Iterable[Tree], *, values: bool
) -> Iterator[Mapping[str, torch.Tensor]]:
    """A pass over each of `parts`, [N, ...], of which sharded models require equally many on every rank."""
    engine.module.eval()
    for chunk in parts:
        inputs: Any = chunk["forward_inputs"]
        on_device = map_tensors(lambda tensor: tensor.to(get_device_id()), inputs)
        yield engine.scores(on_device, values=values)
    engine.module.train()
    # A pass without gradients leaves the outermost unit gathered, whatever is written to its shards next.
    engine.reshard()


def model_name(engine: PolicyEngine) -> str:
    """The key that names the policy, and its value."""
    return f"vla.model.model_type={engine.model_config.section['model_type']!r}"
