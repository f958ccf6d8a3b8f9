"""The answers to the requests of a batch, from what a policy says of all of their environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rlinf_async.core.tensors import Tensors
from rlinf_async.ray_runtime.observation_reuse import without_echoes

Answer = dict[str, Any]


def split(fields: Mapping[str, torch.Tensor | None], sizes: Sequence[int]) -> list[Answer]:
    """The fields of every answer; None in each where the policy has none.

    Args:
        fields: [B, ...], of the environments of all requests, in order.
        sizes: environments in each request.
    """
    answers: list[Answer] = [{} for _ in sizes]
    for name, value in fields.items():
        parts = [None] * len(sizes) if value is None else torch.split(value, list(sizes))
        for answer, part in zip(answers, parts, strict=True):
            answer[name] = part
    return answers


def add_inputs(answers: Sequence[Answer], inputs: Tensors, observations: Sequence[Mapping[str, Any]]) -> None:
    """Give every answer its share of what the policy wants to be scored with, as `forward_inputs`.

    Pictures that a shard has shown itself need not travel back: they are named in `echoes`.

    Args:
        inputs: [B, ...] of all requests, whose `observations` are in the same order as the answers.
    """
    sizes = [len(answer["actions"]) for answer in answers]
    for answer, own, observation in zip(answers, split(inputs, sizes), observations, strict=True):
        answer["forward_inputs"], answer["echoes"] = without_echoes(own, observation)


def add_bootstrap_values(
    answers: Sequence[Answer],
    payloads: Sequence[Mapping[str, Any]],
    values_of: Callable[[list[Any], int], torch.Tensor | None],
) -> None:
    """Value final observations, for the shards whose episodes have just ended, and for no others.

    Args:
        values_of: called with the final observations of some requests and the number of their environments;
            one value for each, or None where the policy has none.
    """
    for answer in answers:
        answer["bootstrap_values"] = None
    finals = [
        (answer, payload["final_obs"])
        for answer, payload in zip(answers, payloads, strict=True)
        if payload.get("final_obs") is not None
    ]
    if not finals:
        return
    sizes = [len(answer["actions"]) for answer, _ in finals]
    values = values_of([observation for _, observation in finals], sum(sizes))
    for (answer, _), part in zip(finals, split({"values": values}, sizes), strict=True):
        answer["bootstrap_values"] = part["values"]
