"""The rollouts of a shard: what its environments show, and what RLinf's actor trains on, as pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.tensors import Episodes, Tree, concatenate, map_tensors
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.hosts.kit.recorder import Recorder
from rlinf_async.hosts.rlinf.borrowed import OBSERVED_FIELDS
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.observe.episodes import MODEL_REWARDS

OUTCOME_FIELDS = ("rewards", "dones", "terminations", "truncations", "intervene_actions", "intervene_flags")
"""Results of a chunk of steps, beside observations."""
INFO_KEYS = ("success", "episode", "final_info")
"""Keys of the information of a step that RLinf's reward models are told."""


@dataclass(kw_only=True)
class EnvStep:
    """The outputs of B environments after a chunk of C steps, or at the start of a rollout; on the CPU."""

    obs: dict[str, Any]
    final_obs: dict[str, Any] | None = None
    """The last observations of episodes that others have followed."""
    rewards: torch.Tensor | None = None
    """[B, C]; none at the beginning of a rollout."""
    dones: torch.Tensor | None = None
    """[B, C] bool, as are `terminations` and `truncations`; none in an evaluation."""
    terminations: torch.Tensor | None = None
    truncations: torch.Tensor | None = None
    intervene_actions: torch.Tensor | None = None
    """[B, C x A]: what a hand did in the place of the actions before."""
    intervene_flags: torch.Tensor | None = None
    """[B, C] bool: where it did."""
    infos: dict[str, Any] | None = None
    """Further facts for reward models: success, and statistics of episodes."""
    model_rewards: torch.Tensor | None = None
    """[B, 1] or [B, C]: the part of the rewards that a reward model has given, before it was weighted."""
    spread: tuple[torch.Tensor, list[int]] | None = None
    """[B, 1], and a number of decisions for each environment: a reward that all of the last so many get, this
    one among them, which has it already."""

    @classmethod
    def of(cls, output: Any) -> EnvStep:
        """From an env output of RLinf, whose newest form keeps what came of the steps in its `transition`."""
        outcome = getattr(output, "transition", output)
        told = {name: getattr(outcome, name) for name in OUTCOME_FIELDS}
        infos = getattr(output, "env_infos", None) or {}
        kept_infos = {name: infos[name] for name in INFO_KEYS if name in infos}
        return cls(obs=output.obs, final_obs=output.final_obs, infos=kept_infos or None, **told)

    def __post_init__(self) -> None:
        self.obs = _policy_fields(self.obs)
        self.final_obs = None if self.final_obs is None else _policy_fields(self.final_obs)

    def rewards_with(self, values: torch.Tensor | None, algorithm: Any) -> torch.Tensor | None:
        """The rewards of environments that reset themselves, as RLinf completes them, [B, C].

        Where an episode was cut, or with another `bootstrap_type` than `standard` has ended, the value of its
        last observation is added to the last reward.

        Args:
            values: [B, 1], of the final observations.
            algorithm: RLinf's section.
        """
        if self.rewards is None or values is None or self.dones is None:
            return self.rewards
        standard = algorithm.get("bootstrap_type", "standard") == "standard"
        ends = self.truncations if standard else self.dones
        assert ends is not None, "the ends of a chunk come together"
        # RLinf looks at the last step of a chunk alone (`compute_bootstrap_rewards`).
        last = ends[:, -1]
        rewards = self.rewards.clone()
        rewards[last, -1] += algorithm.gamma * values[last].reshape(-1).to(torch.float32)
        return rewards


@dataclass(frozen=True)
class ShardOutput:
    """The outputs of the environments, with the episode statistics that came with them."""

    env: EnvStep
    info: dict[str, torch.Tensor] = field(default_factory=dict)
    playing: Playing | None = None
    """Those of whom the next decision is; None for all."""


class Trajectory:
    """A rollout of the environments of a shard, field by field, of [T or T + 1, B, ...].

    `actions`, `intervene_flags`, `prev_logprobs`, `versions` and the tree `forward_inputs` have T decisions,
    `rewards` what came of them; `dones`, `terminations`, `truncations` and `prev_values` belong to T + 1
    observations. RLinf's actor computes with these names and shapes.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = defaultdict(list)

    def see(self, step: EnvStep, rewards: torch.Tensor | None, values: torch.Tensor | None) -> None:
        """Add an observation, its value, and what came of the decision before it."""
        ends = {name: getattr(step, name) for name in ("dones", "terminations", "truncations")}
        self._add({**ends, "rewards": rewards, "prev_values": values})

    def decide(self, inputs: Tree, logprobs: torch.Tensor, *, version: int) -> None:
        """Add a decision on the observation that was seen last, by one policy version.

        Args:
            inputs: [B, ...], what the policy wants to be scored with; its `action` was acted.
        """
        action: Any = inputs.get("action")
        no_hand = None if action is None else torch.zeros_like(action, dtype=torch.bool)
        # Environments may have set another default type, in which a version would be rounded.
        made_by = torch.full((len(logprobs), 1), float(version), dtype=torch.float32)
        present_inputs = {name: value for name, value in inputs.items() if value is not None}
        self._add({"actions": action, "intervene_flags": no_hand, "forward_inputs": present_inputs or None})
        self._add({"prev_logprobs": logprobs, "versions": made_by})

    def correct(self, actions: torch.Tensor, flags: torch.Tensor) -> None:
        """A hand acted in the place of the last decision, if there was one.

        Args:
            actions: [B, C x A].
            flags: [B, C] bool; or [B], of whole chunks.
        """
        # At the start of a rollout: the hand acted in the rollout before, which has been handed over.
        if not self._rows["actions"]:
            return
        steps = flags.reshape(len(flags), -1, 1)
        policy_actions, by_hand = (
            each.reshape(*steps.shape[:2], -1) for each in (self._rows["actions"][-1], actions)
        )
        mixed = torch.where(steps, by_hand, policy_actions).flatten(1)
        self._rows["actions"][-1] = mixed
        self._rows["intervene_flags"][-1] = steps.expand_as(by_hand).flatten(1)
        inputs = self._rows["forward_inputs"][-1]
        inputs["action"] = mixed
        # As RLinf's `update_last_actions` (0.3 and main): the policy did not act.
        inputs.pop("model_action", None)

    def spread(self, rewards: torch.Tensor, decisions: Sequence[int]) -> None:
        """Add a reward to the decisions before the last one, which has it already.

        Args:
            rewards: [B, 1].
            decisions: how many of the last get it, for each of B; those of rollouts before are out of reach.
        """
        for env, number in enumerate(decisions):
            # For 0 the slice would be all rows but the last.
            for row in self._rows["rewards"][-number:-1] if number else ():
                row[env] += rewards[env]

    def whole(self) -> Tree:
        """All of it."""
        return {name: _stack_rows(rows) for name, rows in self._rows.items() if rows}

    def _add(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if value is not None:
                self._rows[name].append(value)


def _stack_rows(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(list(rows))
    return concatenate([map_tensors(lambda tensor: tensor.unsqueeze(0), row) for row in rows])


def _policy_fields(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an observation that policies are shown; None for a field that is not there."""
    told = observation.get("task_descriptions")
    fields = {name: _on_cpu(observation.get(name)) for name in OBSERVED_FIELDS}
    return {**fields, "task_descriptions": None if told is None else list(told)}


def _on_cpu(value: Any) -> Any:
    return value.cpu().contiguous() if isinstance(value, torch.Tensor) else value


class ShardRecorder(Recorder[ShardOutput]):
    """Records what RLinf's workers would, chunk step by chunk step, for one rollout epoch."""

    def __init__(
        self, ticket: Ticket, *, settings: RLinfSettings, cfg: DictConfig, episodes: Episodes
    ) -> None:
        env = cfg.env.train
        # As RLinf's `_run_interact_once`: otherwise each chunk tells of the whole rollout so far.
        every_end = bool(env.auto_reset or env.ignore_terminations)
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._algorithm, self._resets = cfg.algorithm, bool(env.auto_reset)
        self._trajectory = Trajectory()

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return output.env.obs

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return output.info

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        step = output.env
        if step.intervene_actions is not None:
            assert step.intervene_flags is not None, "a hand says where it acted"
            self._trajectory.correct(step.intervene_actions, step.intervene_flags)
        # As RLinf's `compute_bootstrap_rewards`: without `auto_reset` nothing is added to rewards.
        values = answer["bootstrap_values"] if self._resets else None
        self._trajectory.see(step, step.rewards_with(values, self._algorithm), answer["prev_values"])
        # After `see`, which has added the row of this step: the last one is left out.
        if step.spread is not None:
            self._trajectory.spread(*step.spread)
        if step.model_rewards is not None:
            self._own_episodes.append({MODEL_REWARDS: step.model_rewards.float().flatten()})

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        self._trajectory.decide(inputs, answer["prev_logprobs"], version=answer["version"])

    def rollout(self) -> Tree:
        return self._trajectory.whole()
