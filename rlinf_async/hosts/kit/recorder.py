"""Turns the rollout of one shard into pieces for the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from rlinf_async.core.tensors import Episodes, Tree, concatenate, map_tensors
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.kit.pieces import cut_into_pieces
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.hosts.observations import with_echoes
from rlinf_async.loops.finite import check_answer
from rlinf_async.loops.run_settings import RunSettings

Output = TypeVar("Output", bound="Played")


class Played(Protocol):
    """An output of B environments after a decision, or at the start of a rollout."""

    @property
    def playing(self) -> Playing | None:
        """The environments of the next decision; None for all."""


class Decided(Played, Protocol):
    """An output as `Played`, with an observation, statistics of episodes, rewards and ends of episodes."""

    @property
    def observation(self) -> dict[str, Any]: ...

    @property
    def episodes(self) -> dict[str, torch.Tensor]: ...

    @property
    def rewards(self) -> torch.Tensor:
        """[B], summed over the steps of the decision."""

    @property
    def ended(self) -> torch.Tensor:
        """[B] bool: the episode is over."""


DecidedOutput = TypeVar("DecidedOutput", bound=Decided)
ANSWER_FIELDS = ("actions", "prev_logprobs", "prev_values", "bootstrap_values")
"""Fields of an answer that must be finite."""
REPEATED_FIELDS = ("actions", "prev_logprobs", "prev_values")
"""Fields of an answer, besides inputs, that are repeated after the end of an environment's episode."""


class Recorder(Generic[Output]):
    """Records one rollout of the environments of a shard; fills `loops.ports.Recorder`.

    Answers are those of `Answering`, for the playing environments. A host notes the results of the decisions
    of all B environments, and returns them as [T, B, ...] from `rollout`. After the end of an environment's
    episode its last answer is repeated, beside the images that it shows: the loss masks these rows, but their
    numbers are valid. If values are recomputed, the inputs of the last observation are added as
    `bootstrap_inputs` [1, B, ...]. A piece ends with the last decision of its episodes (`kit.pieces`).
    """

    def __init__(self, ticket: Ticket, *, settings: RunSettings, every_end: bool, episodes: Episodes) -> None:
        """`every_end`: True if each output has the statistics of episodes that ended in it; False if the last
        output has those of all episodes.
        """
        self._ticket, self._settings = ticket, settings
        self._every_end, self._episodes = every_end, episodes
        self._own_episodes: Episodes = []
        self._versions: list[int] = []
        self._last: Tree = {}
        """The last answer of each environment."""
        self._played: list[Playing | None] = []
        """The environments of each decision."""

    def append(self, output: Output, answer: Mapping[str, Any]) -> None:
        whole = self._see(output, answer)
        self.decide(whole["forward_inputs"], whole)
        self._versions.append(whole["version"])
        self._played.append(output.playing)

    async def complete(self, output: Output) -> None:
        """Wait for results that come after their step. Hosts may override this."""

    def build(self, output: Output, answer: Mapping[str, Any] | None) -> list[Piece]:
        whole = self._see(output, answer, last=True)
        beyond = one_row(whole["forward_inputs"]) if self._settings.asynchrony.recomputes else None
        pieces = cut_into_pieces(
            self._ticket,
            self.rollout(),
            beyond,
            settings=self._settings,
            versions=self._versions,
            played=self._played,
            steps_per_decision=self.steps_per_decision(),
        )
        # Only here: a rollout that fails is repeated, and must add no episodes.
        self._episodes.extend(self._own_episodes)
        return pieces

    def _see(
        self, output: Output, answer: Mapping[str, Any] | None, *, last: bool = False
    ) -> Mapping[str, Any]:
        """Note the results of the previous decision, and the value of the state after it.

        Returns:
            The answer for all environments.
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
        """Return the answer for all environments, with the policy's inputs for scoring actions."""
        if answer is None:
            return {**self._last, "bootstrap_values": None, "version": self._versions[-1]}
        playing = output.playing
        own: Tree = {name: answer.get(name) for name in (*REPEATED_FIELDS, "forward_inputs")}
        self._last = own if playing is None else playing.among(self._last, own)
        # Of all environments: so the rows of a rollout are those of its memory (`wire.shown_memory`).
        inputs: Any = self._last["forward_inputs"]
        self._last["forward_inputs"] = with_echoes(inputs, answer["echoes"], self.observation_of(output))
        # Environments that send final observations reset themselves, so that all of them play on.
        values = answer.get("bootstrap_values") if playing is None else None
        return {**self._last, "bootstrap_values": values, "version": int(answer["version"])}

    def steps_per_decision(self) -> int:
        """Return the environment steps of a decision. Hosts may override this."""
        return self._settings.steps_per_decision

    def observation_of(self, output: Output) -> dict[str, Any]:
        """Return the observation in an output. Hosts implement this."""
        raise NotImplementedError

    def episodes_of(self, output: Output) -> dict[str, torch.Tensor]:
        """Return the statistics of episodes in an output. Hosts implement this."""
        raise NotImplementedError

    def see(self, output: Output, answer: Mapping[str, Any]) -> None:
        """Note an output and the policy's values for it. Hosts implement this."""
        raise NotImplementedError

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        """Note a decision and the policy's inputs for scoring it. Hosts implement this."""
        raise NotImplementedError

    def rollout(self) -> Tree:
        """Return the fields noted in T decisions, [T, B, ...] or [T + 1, B, ...]. Hosts implement this."""
        raise NotImplementedError


class SampleRecorder(Recorder[DecidedOutput]):
    """Records T decisions of B environments in the fields that `kit.scoring` reads.

    * `forward_inputs` {name: [T, B, ...]}: the policy's inputs for scoring its actions.
    * `bootstrap_inputs` {name: [1, B, ...]}: those of the last observation, if values are recomputed.
    * `prev_logprobs` [T, B, ...]: from the policy that acted.
    * `prev_values` [T + 1, B]: if the policy has values.
    * `rewards` [T, B].
    * `ended` [T + 1, B] bool: the episode had ended before the decision.
    * `versions` [T, B] int64.
    """

    def __init__(self, ticket: Ticket, *, settings: RunSettings, every_end: bool, episodes: Episodes) -> None:
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._scored_by: list[Tree] = []
        self._logprobs: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._rewards: list[torch.Tensor] = []
        self._ended: list[torch.Tensor] = []

    def observation_of(self, output: DecidedOutput) -> dict[str, Any]:
        return output.observation

    def episodes_of(self, output: DecidedOutput) -> dict[str, torch.Tensor]:
        return output.episodes

    def rewards_of(self, output: DecidedOutput, answer: Mapping[str, Any]) -> torch.Tensor:
        """Return the rewards [B] of the decision before `output`. Hosts may override this."""
        return output.rewards

    def logprobs_of(self, answer: Mapping[str, Any]) -> torch.Tensor:
        """Return the log-probabilities of a decision, [B, ...]. Hosts may override this to shape them."""
        return answer["prev_logprobs"]

    def see(self, output: DecidedOutput, answer: Mapping[str, Any]) -> None:
        self._rewards.append(self.rewards_of(output, answer))
        # With environments that reset themselves, a rollout begins in the middle of episodes.
        self._ended.append(output.ended if self._versions else torch.zeros_like(output.ended))
        if answer.get("prev_values") is not None:
            self._values.append(one_each(answer["prev_values"]))

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        self._scored_by.append(inputs)
        self._logprobs.append(self.logprobs_of(answer))

    def joined_inputs(self, rows: Sequence[Tree]) -> Tree:
        """Return the inputs of T decisions, [B, ...] each, as [T, B, ...]. Hosts may override this."""
        return concatenate(rows, join=torch.stack)

    def _joined_inputs(self) -> Tree:
        try:
            return self.joined_inputs(self._scored_by)
        except (KeyError, RuntimeError, ValueError) as error:
            if difference := _difference(self._scored_by):
                raise ValueError(
                    f"the policy's forward_inputs differ between decisions: {difference}"
                ) from error
            raise

    def rollout(self) -> Tree:
        ended = torch.stack(self._ended)
        fields: Tree = {
            "forward_inputs": self._joined_inputs(),
            "prev_logprobs": torch.stack(self._logprobs),
            # The first output is that of the start, before any decision.
            "rewards": torch.stack(self._rewards[1:]),
            "ended": ended,
            "versions": torch.tensor(self._versions)[:, None].expand(-1, ended.shape[1]),
        }
        return fields | ({"prev_values": torch.stack(self._values)} if self._values else {})


def _difference(rows: Sequence[Tree]) -> str:
    """Return the first difference in names or shapes between the inputs of decisions; "" without any."""
    first, *others = [{name: _form(value) for name, value in row.items()} for row in rows]
    for number, other in enumerate(others, 1):
        for name in {**first, **other}:
            if (one := first.get(name, "absent")) != (two := other.get(name, "absent")):
                return f"{name} is {one} in the first and {two} in number {number + 1}"
    return ""


def _form(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__


def one_each(values: torch.Tensor) -> torch.Tensor:
    """Return one value for each environment, [B]."""
    return values.float().reshape(len(values), -1)[:, 0]


def one_row(tree: Tree) -> Tree:
    """Return tensors [B, ...] as one row, [1, B, ...]."""
    return map_tensors(lambda tensor: tensor.unsqueeze(0), tree)
