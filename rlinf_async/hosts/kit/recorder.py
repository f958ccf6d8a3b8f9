"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import torch

from rlinf_async.core.tensors import Episodes, Tree, concatenate, map_tensors
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.kit.answers import with_echoes
from rlinf_async.hosts.kit.pieces import cut_into_pieces
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.loops.finite import check_answer
from rlinf_async.loops.run_settings import RunSettings

Output = TypeVar("Output", bound="Played")


class Played(Protocol):
    """An output of B environments after a decision, or at the start of a rollout."""

    @property
    def playing(self) -> Playing | None:
        """Those of whom the next decision is; None for all."""


class Decided(Played, Protocol):
    """An output of B environments after a decision, or at the start of a rollout."""

    @property
    def rewards(self) -> torch.Tensor:
        """[B], summed over the steps of the decision."""

    @property
    def ended(self) -> torch.Tensor:
        """[B] bool: the episode is over."""


DecidedOutput = TypeVar("DecidedOutput", bound=Decided)
ANSWER_FIELDS = ("actions", "prev_logprobs", "prev_values", "bootstrap_values")
"""Fields of an answer that have to be finite."""
REPEATED_FIELDS = ("actions", "prev_logprobs", "prev_values")
"""Fields of an answer, beside inputs, that environments keep which play no more."""


class Recorder(Generic[Output]):
    """Records one rollout of the environments of a shard; fills `loops.ports.Recorder`.

    Answers are those of `Answering`, to the environments that were playing. A host notes what came of the
    decisions of all B, and gives all of it, of [T, B, ...], in `rollout`. An environment that plays no more
    has the last answer of its episode again: rows that nobody trains on, and that anybody can compute with.
    The inputs of the last observation, `bootstrap_inputs` [1, B, ...], come to it where values are
    recomputed. A piece ends with the last decision of its episodes (`kit.pieces`).
    """

    def __init__(self, ticket: Ticket, *, settings: RunSettings, every_end: bool, episodes: Episodes) -> None:
        """`every_end`: whether each output brings episodes of its own; else the last one has them all."""
        self._ticket, self._settings = ticket, settings
        self._every_end, self._episodes = every_end, episodes
        self._own_episodes: Episodes = []
        self._versions: list[int] = []
        self._last: Tree = {}
        """The last answers of all environments."""
        self._played: list[Playing | None] = []
        """Whose the decisions were."""

    def append(self, output: Output, answer: Mapping[str, Any]) -> None:
        whole = self._see(output, answer)
        self.decide(whole["forward_inputs"], whole)
        self._versions.append(whole["version"])
        self._played.append(output.playing)

    def build(self, output: Output, answer: Mapping[str, Any] | None) -> list[Piece]:
        whole = self._see(output, answer, last=True)
        # Only here: a rollout that fails before leaves no episodes, and is made again.
        self._episodes.extend(self._own_episodes)
        beyond = one_row(whole["forward_inputs"]) if self._settings.asynchrony.recomputes else None
        return cut_into_pieces(
            self._ticket,
            self.rollout(),
            beyond,
            settings=self._settings,
            versions=self._versions,
            played=self._played,
            steps_per_decision=self.steps_per_decision(),
        )

    def _see(
        self, output: Output, answer: Mapping[str, Any] | None, *, last: bool = False
    ) -> Mapping[str, Any]:
        """Note the results of the decision before, and the value of the state that it has led to.

        Returns:
            The answer to all environments.
        """
        whole = self._of_all(output, answer)
        if answer is not None:
            scores = {name: answer.get(name) for name in ANSWER_FIELDS}
            check_answer(self._settings.asynchrony.advanced, scores, version=whole["version"])
        if (episodes := self.episodes_of(output)) and (self._every_end or last):
            self._own_episodes.append(episodes)
        self.see(output, whole)
        return whole

    def _of_all(self, output: Output, answer: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to all environments, with the inputs by which the policy is to be scored."""
        if answer is None:
            return {**self._last, "bootstrap_values": None, "version": self._versions[-1]}
        playing, shown = output.playing, self.observation_of(output)
        if playing is not None:
            shown = playing.of(shown)
        own: Tree = {name: answer.get(name) for name in REPEATED_FIELDS}
        own["forward_inputs"] = dict(with_echoes(answer["forward_inputs"], answer["echoes"], shown))
        self._last = own if playing is None else playing.among(self._last, own)
        # Values of final observations are of episodes that others follow: then all environments play.
        values = answer.get("bootstrap_values") if playing is None else None
        return {**self._last, "bootstrap_values": values, "version": int(answer["version"])}

    def steps_per_decision(self) -> int:
        """Return the environment steps of a decision. A host may count them."""
        return self._settings.steps_per_decision

    def observation_of(self, output: Output) -> dict[str, Any]:
        """Return the observation that the policy has answered. A host gives it."""
        raise NotImplementedError

    def episodes_of(self, output: Output) -> dict[str, torch.Tensor]:
        """Return the statistics of episodes that have come with an output. A host gives them."""
        raise NotImplementedError

    def see(self, output: Output, answer: Mapping[str, Any]) -> None:
        """Note what an output shows, and the values that the policy gives it. A host does."""
        raise NotImplementedError

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        """Note a decision, and the inputs by which it is to be scored. A host does."""
        raise NotImplementedError

    def rollout(self) -> Tree:
        """Return all that was noted of T decisions, [T, B, ...] or [T + 1, B, ...]. A host gives it."""
        raise NotImplementedError


class SampleRecorder(Recorder[DecidedOutput]):
    """Records T decisions of B environments in the fields that `kit.scoring` reads.

    forward_inputs    {name: [T, B, ...]}, what the policy scores its actions by
    bootstrap_inputs  {name: [1, B, ...]}, of the last observation; where values are recomputed
    prev_logprobs     [T, B, ...], of the policy that acted
    prev_values       [T + 1, B], where the policy has some
    rewards           [T, B]
    ended             [T + 1, B]: before the decision
    versions          [T, B] int64
    """

    def __init__(self, ticket: Ticket, *, settings: RunSettings, every_end: bool, episodes: Episodes) -> None:
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._scored_by: list[Tree] = []
        self._logprobs: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._rewards: list[torch.Tensor] = []
        self._ended: list[torch.Tensor] = []

    def rewards_of(self, output: DecidedOutput, answer: Mapping[str, Any]) -> torch.Tensor:
        """Return the rewards [B] of the decision before `output`. A host may add to them."""
        return output.rewards

    def logprobs_of(self, answer: Mapping[str, Any]) -> torch.Tensor:
        """Return the log-probabilities of a decision, [B, ...]. A host may shape them."""
        logprobs: torch.Tensor = answer["prev_logprobs"]
        return logprobs

    def see(self, output: DecidedOutput, answer: Mapping[str, Any]) -> None:
        self._rewards.append(self.rewards_of(output, answer))
        # A rollout of environments that reset themselves begins in the middle of episodes.
        self._ended.append(output.ended if self._versions else torch.zeros_like(output.ended))
        if answer.get("prev_values") is not None:
            self._values.append(one_each(answer["prev_values"]))

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        self._scored_by.append(inputs)
        self._logprobs.append(self.logprobs_of(answer))

    def rollout(self) -> Tree:
        ended = torch.stack(self._ended)
        fields: Tree = {
            "forward_inputs": concatenate([one_row(inputs) for inputs in self._scored_by]),
            "prev_logprobs": torch.stack(self._logprobs),
            # The first output is that of the start, before which nothing was decided.
            "rewards": torch.stack(self._rewards[1:]),
            "ended": ended,
            "versions": torch.tensor(self._versions)[:, None].expand(-1, ended.shape[1]),
        }
        return fields | ({"prev_values": torch.stack(self._values)} if self._values else {})


def one_each(values: torch.Tensor) -> torch.Tensor:
    """Return one value for each environment, [B]."""
    return values.float().reshape(len(values), -1)[:, 0]


def one_row(tree: Tree) -> Tree:
    """Return tensors of [B, ...] as those of one moment, [1, B, ...]."""
    return map_tensors(lambda tensor: tensor.unsqueeze(0), tree)
