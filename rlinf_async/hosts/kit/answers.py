"""Splits a policy's result for a batch into the answers to its requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rlinf_async.core.failures import ForeignError, frames_of
from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.kit.examination import FirstLook, drawing_by, whole_decision
from rlinf_async.hosts.observations import each_alike, kind_of_request, without_echoes

Answer = dict[str, Any]


TYPES_DIFFER = re.compile("dtype|[Dd]ouble")
"""Words of torch's errors about operands of different types."""


@contextmanager
def naming_doubles(observations: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """A block in which the policy decides. An error about types of numbers names the fields that environments
    have given in double precision, which is numpy's default, and which few policies take.
    """
    try:
        yield
    except RuntimeError as error:
        of_policy, fields = ForeignError.of(error), [item for each in observations for item in each.items()]
        doubles = dict.fromkeys(name for name, value in fields if getattr(value, "dtype", 0) is torch.float64)
        if not doubles or not TYPES_DIFFER.search(of_policy.message):
            raise
        words = f"{of_policy.message} (the environments have given {' and '.join(doubles)} as float64)"
        named = ForeignError(of_policy.kind, words)
        named.add_note(frames_of(of_policy))
        raise named from None


class Answering:
    """The part of an inference rank that turns a batch of requests into one answer for each."""

    _version_held: int
    """The policy version of the weights; a host sets it when it loads weights."""

    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Return actions for `size` environments and the policy's result for them, on the CPU. Hosts
        implement this.

        For training the result has `prev_logprobs`, `forward_inputs` and, with a critic, `prev_values`.
        """
        raise NotImplementedError

    first_look: FirstLook | None = None
    """Examines the policy once; None on ranks that do not."""

    def by_chance(
        self, observations: list[Mapping[str, Any]], size: int, mode: str, chance: int
    ) -> Mapping[str, Any]:
        """Return a decision with random numbers seeded by `chance`. Hosts with noise in their requests
        override this.
        """
        with drawing_by(chance):
            return whole_decision(*self.decide(observations, size, mode))

    def watched_module(self) -> nn.Module | None:
        """Return the policy, if it is a module, to check that acting leaves its buffers unchanged. Hosts
        override this.
        """
        return None

    def has_critic(self) -> bool:
        """Return False if the policy has no values. Hosts may override this."""
        return True

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        """Return one answer per request: `actions` and the `version`; for training also `prev_logprobs`,
        `prev_values`, `bootstrap_values`, `forward_inputs`, and the `echoes` among the inputs.

        The policy sees requests as one batch only if their observations have the same fields.
        """
        return each_alike(
            payloads,
            lambda numbers: self._answer(
                [payloads[number] for number in numbers], [sizes[number] for number in numbers], mode
            ),
            kind_of_request,
        )

    def _answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        observations = [payload["obs"] for payload in payloads]
        with naming_doubles(observations):
            if mode == "train" and self.first_look is not None:
                self.first_look(self.by_chance, observations, sum(sizes), module=self.watched_module())
            actions, result = self.decide(observations, sum(sizes), mode)
        fields: Tree = {"actions": actions}
        if mode == "train":
            fields |= {name: result.get(name) for name in ("prev_logprobs", "prev_values")}
        answers: list[Answer] = [{"version": self._version_held, **own} for own in split(fields, sizes)]
        if mode == "train":
            add_inputs(answers, result["forward_inputs"], observations)
            add_bootstrap_values(answers, payloads, self._values_of)
        return answers

    def _values_of(self, observations: list[Any], size: int) -> torch.Tensor | None:
        """Return the values [B, 1] of the final observations of B environments; None without a critic."""
        if not self.has_critic():
            return None
        # As in RLinf's `get_bootstrap_values` (0.3, main): in mode `train`, the first column of the values.
        values = self.decide(observations, size, "train")[1].get("prev_values")
        return None if values is None else values.reshape(size, -1)[:, :1].cpu()


def split(fields: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Return the fields of each request's answer; a field that is None stays None in each.

    Args:
        fields: [B, ...], for the environments of all requests, in order.
        sizes: environments in each request.
    """
    parts: list[Tree] = [{} for _ in sizes]
    for name, value in fields.items():
        columns: Sequence[torch.Tensor | Tree | None]
        if value is None:
            columns = [None] * len(sizes)
        elif isinstance(value, dict):
            columns = split(value, sizes)
        else:
            if not value.dim() or len(value) < sum(sizes):
                shape = list(value.shape)
                raise ValueError(f"{name!r} of the policy is {shape} for {sum(sizes)} environments")
            # At once: a call for each request took four times as long.
            columns = value[: sum(sizes)].split(list(sizes))
        for part, column in zip(parts, columns, strict=True):
            part[name] = column
    return parts


def add_inputs(answers: Sequence[Answer], inputs: Tree, observations: Sequence[Mapping[str, Any]]) -> None:
    """Give every answer its part of the policy's inputs for scoring actions, as `forward_inputs`.

    Images that the shard sent in its request are not sent back; `echoes` names them.

    Args:
        inputs: [B, ...], for all requests.
        observations: of each request, in the order of the answers.
    """
    sizes = [len(answer["actions"]) for answer in answers]
    for answer, own, observation in zip(answers, split(inputs, sizes), observations, strict=True):
        answer["forward_inputs"], answer["echoes"] = without_echoes(own, observation)


def add_bootstrap_values(
    answers: Sequence[Answer],
    payloads: Sequence[Mapping[str, Any]],
    values_of: Callable[[list[Any], int], torch.Tensor | None],
) -> None:
    """Add the values of final observations to the answers of shards with episodes that have just ended.

    Args:
        values_of: called with the final observations of some requests and the number of their environments;
            returns one value for each environment, or None without a critic.
    """
    # Recorders read this key in every answer to a training request.
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
