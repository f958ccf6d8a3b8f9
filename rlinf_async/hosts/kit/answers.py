"""Answers to the requests of a batch, from what a policy says of all of their environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from rlinf_async.core.tensors import Tree, slice_samples
from rlinf_async.hosts.kit.examination import FirstLook, drawing_by, whole_decision
from rlinf_async.hosts.observations import each_alike, observations_of

Answer = dict[str, Any]


class Answering:
    """The part of an inference rank that makes an answer for each request of a batch."""

    _version_held: int
    """The version of the policy; a host sets it with its weights."""

    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Actions for `size` environments, and what the policy says of them, on the CPU. A host gives them.

        For training it says `prev_logprobs`, `forward_inputs` and, with a critic, `prev_values`.
        """
        raise NotImplementedError

    first_look: FirstLook | None = None
    """Examines the policy once, on the rank that a host has do it."""

    def by_chance(
        self, observations: list[Mapping[str, Any]], size: int, mode: str, chance: int
    ) -> Mapping[str, Any]:
        """Return a decision whose draws follow from `chance`. A host whose requests bring theirs says how."""
        with drawing_by(chance):
            return whole_decision(*self.decide(observations, size, mode))

    def watched_module(self) -> nn.Module | None:
        """Return the policy as a module whose buffers acting must leave alone, if it is one. A host does."""
        return None

    def has_critic(self) -> bool:
        """Return False if values need not be asked for, as there are none. A host may know."""
        return True

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        """One answer per request: `actions` and the `version`; for training also `prev_logprobs`,
        `prev_values`, `bootstrap_values`, `forward_inputs`, and the `echoes` among the inputs.

        Only what has the same fields is seen by the policy as one batch.
        """
        return each_alike(
            [observations_of(payload) for payload in payloads],
            lambda numbers: self._answer(
                [payloads[number] for number in numbers], [sizes[number] for number in numbers], mode
            ),
        )

    def _answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        observations = [payload["obs"] for payload in payloads]
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
        """The values [B, 1] of the final observations of B environments; None where there is no critic."""
        if not self.has_critic():
            return None
        # As RLinf's `get_bootstrap_values` (0.3, main): in the mode `train`, and the first column of values.
        values = self.decide(observations, size, "train")[1].get("prev_values")
        return None if values is None else values.reshape(size, -1)[:, :1].cpu()


def split(fields: Tree, sizes: Sequence[int]) -> list[Tree]:
    """The fields of every answer; None in each where the policy has none.

    Args:
        fields: [B, ...], of the environments of all requests, in order.
        sizes: environments in each request.
    """
    return [slice_samples(fields, *ends) for ends in pairwise([0, *accumulate(sizes)])]


def add_inputs(answers: Sequence[Answer], inputs: Tree, observations: Sequence[Mapping[str, Any]]) -> None:
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
    # The key is there in every answer of a training request: recorders read it by its name.
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


def without_echoes(inputs: Tree, observation: Mapping[str, Any]) -> tuple[Tree, dict[str, str]]:
    """Leave out the `inputs` of a policy that are the very pictures of an observation.

    Returns:
        What is left; and, for each name that is not, the name of its picture.
    """
    pictures = {name: pixels for name, pixels in observation.items() if _is_picture(pixels)}
    echoes = {
        name: picture
        for name, value in inputs.items()
        if _is_picture(value)
        for picture, pixels in pictures.items()
        # By content: the inputs of a policy may be a copy. Pictures that it has cropped or cast are no echo.
        if torch.equal(value, pixels)  # type: ignore[arg-type]
    }
    return {name: value for name, value in inputs.items() if name not in echoes}, echoes


def with_echoes(inputs: Tree, echoes: Mapping[str, str], observation: Mapping[str, Any]) -> Tree:
    """Put copies of the pictures that `without_echoes` left out of `inputs` back, from `observation`."""
    return {**inputs, **{name: observation[picture].clone() for name, picture in echoes.items()}}


def _is_picture(value: object) -> bool:
    """Bytes on the CPU. Others are small, or differ from what was shown by their place or type."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.device.type == "cpu"
