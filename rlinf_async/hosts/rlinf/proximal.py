"""Scores of actions that were taken: exact log-probabilities and values, without gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from rlinf_async.core.scores import in_passes, joined
from rlinf_async.core.tensors import Tensors, Tree, concatenate, leaf, map_tensors

SELECTING_MODELS = frozenset({"gr00t", "gr00t_n1d6", "gr00t_n1d7", "abot_m0"})
"""Models that store the log-probabilities of all denoise steps, and select from them when they score one."""
SAMPLE_FIELDS = ("forward_inputs", "prev_logprobs")
"""Fields of a rollout that make a sample which can be scored again."""


def recompute(
    actor: Any, rollout: Tree, bootstrap_inputs: Tree, *, micro_batch_size: int, values: bool
) -> None:
    """`anchor` the rollout at the actor's present policy.

    Args:
        rollout: fields of [T, B, ...].
        bootstrap_inputs: forward inputs of the last observation, [B, ...].
    """
    samples = samples_of(rollout)
    beyond = [_last(rollout, bootstrap_inputs)] if values else []
    parts = in_passes(micro_batch_size, samples, *beyond)
    anchor(actor.cfg, rollout, list(forward(actor, parts, values=values)), values=values)


def anchor(cfg: Any, rollout: Tree, scored: Sequence[Tensors], *, values: bool) -> None:
    """Add `proximal_logprobs` to `rollout`, and replace `prev_values`, by passes of the proximal policy.

    With `values`, those of all T + 1 observations come from it too, so that advantages are estimated by one
    policy version.

    A model that stores the log-probabilities of every denoise step scores one of them, and returns which
    of the stored ones belong to it: those become `acted_logprobs`.

    Args:
        scored: passes over the T * B samples and, for values, over the last B observations behind them.

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    steps, width = leaf(rollout, "prev_logprobs").shape[:2]
    model = model_name(cfg)
    for name, field in (("logprobs", "proximal_logprobs"), ("prev_logprobs", "acted_logprobs")):
        if name in scored[0]:
            flat = joined(scored, name, first=steps * width, model=model)
            rollout[field] = flat.reshape(steps, width, *flat.shape[1:])
    if values:
        flat = joined(scored, "values", first=(steps + 1) * width, model=model)
        rollout["prev_values"] = flat.reshape(steps + 1, width, -1)


def scoring_inputs(payload: Tree) -> Tree:
    """Return the inputs of `score` for a piece's payload: T * B samples, and behind them the last B
    observations.
    """
    return concatenate([samples_of(payload), _last(payload, payload["bootstrap_inputs"])])


def _last(rollout: Tree, inputs: Any) -> Tree:
    """The last observations as samples. Whatever was stored goes with them: only their value is wanted."""
    return {"forward_inputs": inputs, "prev_logprobs": leaf(rollout, "prev_logprobs")[-1]}


def samples_of(rollout: Tree, *more: str) -> Tree:
    """Return the samples of a rollout of [T, B, ...] that `forward` scores, with fields `more`: [T * B,
    ...].
    """
    return map_tensors(
        lambda tensor: tensor.flatten(0, 1), {name: rollout[name] for name in (*SAMPLE_FIELDS, *more)}
    )


@torch.no_grad()
def forward(actor: Any, parts: Iterable[Tree], *, values: bool) -> Iterator[dict[str, torch.Tensor]]:
    """A pass over each of `parts`, of which sharded models require equally many on every rank."""
    actor.model.eval()
    for chunk in parts:
        on_device: Any = map_tensors(lambda tensor: tensor.to(actor.device), chunk)
        with actor.amp_context:
            yield score(actor.cfg, actor.model, on_device, values=values)
    # Reached only if the consumer exhausts the generator; otherwise the model stays in evaluation mode.
    actor.model.train()


def score(cfg: Any, model: torch.nn.Module, samples: dict[str, Any], *, values: bool) -> Tensors:
    """One pass over samples that are on the device of the model."""
    output: Tensors = model(
        forward_inputs=samples["forward_inputs"],
        compute_logprobs=True,
        compute_entropy=False,
        compute_values=values,
        use_cache=False,
        **forward_kwargs(cfg, samples["prev_logprobs"]),
    )
    return output


def forward_kwargs(cfg: Any, stored: torch.Tensor) -> dict[str, Any]:
    """Return the arguments that RLinf's training step passes to some models besides inputs; `stored` are
    log-probabilities.
    """
    model = cfg.actor.model.model_type
    if model in SELECTING_MODELS:
        return {"prev_logprobs": stored}
    if model not in ("openvla", "openvla_oft"):
        return {}
    sampling = cfg.rollout.sampling_params
    return {"temperature": sampling.temperature_train, "top_k": sampling.top_k}


def model_name(cfg: Any) -> str:
    """The key that names the model, and its value."""
    return f"actor.model.model_type={cfg.actor.model.model_type!r}"
