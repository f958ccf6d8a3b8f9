"""The outputs of a shard's environments, and its rollouts in the form that RLinf's actor trains on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.core.row_stack import stacked
from rlinf_async.core.tensors import MODEL_REWARDS, Episodes, Tree, leaf
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.hosts.kit.recorder import Recorder
from rlinf_async.hosts.rlinf.borrowed import OBSERVED_FIELDS
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings

OUTCOME_FIELDS = ("rewards", "dones", "terminations", "truncations", "intervene_actions", "intervene_flags")
"""Results of a chunk of steps, besides observations."""
INFO_KEYS = ("success", "episode", "final_info")
"""Keys of a step's `info` that RLinf's reward models get."""


@dataclass(frozen=True, kw_only=True)
class ModelRewards:
    """The rewards of a step with a reward model."""

    mixed: torch.Tensor
    """[B, C]: the rewards of the environments and of the model, weighted."""
    model: torch.Tensor
    """[B, 1] or [B, C]: the model's rewards, before their weight."""
    spread: tuple[torch.Tensor, list[int]] | None = None
    """A reward [B, 1], and a number n of decisions for each environment: the reward belongs to the last n
    decisions. The last of them already includes it."""


@dataclass(kw_only=True)
class EnvStep:
    """The outputs of B environments after a chunk of C steps, or at the start of a rollout; on the CPU."""

    obs: dict[str, Any]
    final_obs: dict[str, Any] | None = None
    """The last observations of episodes that were reset."""
    rewards: torch.Tensor | None = None
    """[B, C]; None at the start of a rollout."""
    dones: torch.Tensor | None = None
    """[B, C] bool, as are `terminations` and `truncations`; None in an evaluation."""
    terminations: torch.Tensor | None = None
    truncations: torch.Tensor | None = None
    intervene_actions: torch.Tensor | None = None
    """[B, C x A]: actions of a human intervention, which replaced the policy's."""
    intervene_flags: torch.Tensor | None = None
    """[B, C] bool: the steps with an intervention."""
    infos: dict[str, Any] | None = None
    """Further inputs of reward models: success, and statistics of episodes."""
    scores: Callable[[], Awaitable[ModelRewards | None]] | None = None
    """Waits for the reward model's answer, which may come while later steps are made; see `scored`."""
    model: ModelRewards | None = None
    """The reward model's answer, once it has come."""

    @classmethod
    def of(cls, output: Any) -> EnvStep:
        """Convert an env output of RLinf; newer versions have the results in its `transition`."""
        outcome = getattr(output, "transition", output)
        results = {name: getattr(outcome, name) for name in OUTCOME_FIELDS}
        infos = getattr(output, "env_infos", None) or {}
        kept_infos = {name: infos[name] for name in INFO_KEYS if name in infos}
        return cls(obs=output.obs, final_obs=output.final_obs, infos=kept_infos or None, **results)

    def __post_init__(self) -> None:
        self.obs = _policy_fields(self.obs)
        self.final_obs = None if self.final_obs is None else _policy_fields(self.final_obs)

    async def scored(self) -> None:
        """Wait for the rewards of the reward model, if there is one, and mix them into those of the step."""
        if self.scores is not None:
            scores, self.scores = self.scores, None
            self.model = await scores()
            if self.model is not None:
                self.rewards = self.model.mixed

    def without_observations(self) -> EnvStep:
        """Return a step with the same results, and without the memory of its observations."""
        step = object.__new__(EnvStep)
        # Past the constructor, which would look for fields of observations.
        step.__dict__.update(self.__dict__, obs={}, final_obs=None, infos=None)
        return step

    def rewards_with(self, values: torch.Tensor | None, algorithm: Any) -> torch.Tensor | None:
        """Return the rewards [B, C] of environments with auto_reset, with bootstrapped values as RLinf adds
        them.

        The value of the final observation is added to the last reward of a truncated episode; with a
        `bootstrap_type` other than `standard`, of every ended episode.

        Args:
            values: [B, 1], of the final observations.
            algorithm: RLinf's section `algorithm`.
        """
        if self.rewards is None or values is None or self.dones is None:
            return self.rewards
        standard = algorithm.get("bootstrap_type", "standard") == "standard"
        ends = self.truncations if standard else self.dones
        assert ends is not None, "the ends of a chunk come together"
        # RLinf looks only at the last step of a chunk (`compute_bootstrap_rewards`).
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
    """The environments of the next decision; None for all."""


class Trajectory:
    """A rollout of a shard's environments: fields [T, B, ...] or [T + 1, B, ...].

    `actions`, `intervene_flags`, `prev_logprobs`, `versions`, `rewards` and the tree `forward_inputs` have a
    row for each of T decisions; `dones`, `terminations`, `truncations` and `prev_values` for each of T + 1
    observations. RLinf's actor expects these names and shapes.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = defaultdict(list)
        self._versions: list[float] = []

    def see(self, step: EnvStep, values: torch.Tensor | None) -> None:
        """Add an observation's value, and the ends of episodes in the decision before it."""
        ends = {name: getattr(step, name) for name in ("dones", "terminations", "truncations")}
        self._add({**ends, "prev_values": values})

    def reward(self, rewards: torch.Tensor | None) -> None:
        """Add the rewards [B, C] of the next decision that has none yet; None: the start of a rollout."""
        self._add({"rewards": rewards})

    def decide(self, inputs: Tree, logprobs: torch.Tensor, *, version: int) -> None:
        """Add a decision of one policy version on the last observation.

        Args:
            inputs: [B, ...], the policy's inputs for scoring the decision; `action` was executed.
        """
        action: Any = inputs.get("action")
        no_intervention = None if action is None else torch.zeros_like(action, dtype=torch.bool)
        present_inputs = {name: value for name, value in inputs.items() if value is not None}
        self._add(
            {
                "actions": action,
                "intervene_flags": no_intervention,
                "forward_inputs": present_inputs or None,
                "prev_logprobs": logprobs,
            }
        )
        self._versions.append(float(version))

    def correct(self, actions: torch.Tensor, flags: torch.Tensor) -> None:
        """Replace actions of the last decision, if there is one, by those of a human intervention.

        Args:
            actions: [B, C x A].
            flags: [B, C] bool; or [B], for whole chunks.
        """
        # At the start of a rollout the intervention belongs to the rollout before, which is complete.
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
        # As RLinf's `update_last_actions` (0.3 and main): the policy did not choose this action.
        inputs.pop("model_action", None)

    def spread(self, rewards: torch.Tensor, decisions: Sequence[int]) -> None:
        """Add a reward to decisions before the last that has rewards, which already includes it.

        Args:
            rewards: [B, 1].
            decisions: for each environment, the number of last decisions that get the reward; decisions of
                earlier rollouts do not get it.
        """
        for env, number in enumerate(decisions):
            # With 0 the slice would be all rows but the last.
            for row in self._rows["rewards"][-number:-1] if number else ():
                row[env] += rewards[env]

    def whole(self) -> Tree:
        """Return all fields, stacked; large inputs of the policy as a `RowStack`."""
        fields: Tree = {name: _stack_rows(rows) for name, rows in self._rows.items() if rows}
        if self._versions:
            # The type is explicit, as environments may have set a default type that rounds versions.
            made_by = torch.tensor(self._versions, dtype=torch.float32).reshape(-1, 1, 1)
            fields["versions"] = made_by.repeat(1, leaf(fields, "prev_logprobs").shape[1], 1)
        return fields

    def _add(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if value is not None:
                self._rows[name].append(value)


def _stack_rows(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(list(rows))
    return stacked(rows)


def _policy_fields(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an observation that policies get; None for a missing field."""
    descriptions = observation.get("task_descriptions")
    fields = {name: _on_cpu(observation.get(name)) for name in OBSERVED_FIELDS}
    return {**fields, "task_descriptions": None if descriptions is None else list(descriptions)}


def _on_cpu(value: Any) -> Any:
    return value.cpu().contiguous() if isinstance(value, torch.Tensor) else value


class ShardRecorder(Recorder[ShardOutput]):
    """Records the fields that RLinf's workers would, for one rollout epoch."""

    def __init__(
        self, ticket: Ticket, *, settings: RLinfSettings, cfg: DictConfig, episodes: Episodes
    ) -> None:
        env = cfg.env.train
        # As RLinf's `_run_interact_once`: otherwise each chunk has statistics of the whole rollout so far.
        every_end = bool(env.auto_reset or env.ignore_terminations)
        super().__init__(ticket, settings=settings, every_end=every_end, episodes=episodes)
        self._algorithm, self._resets = cfg.algorithm, bool(env.auto_reset)
        self._trajectory = Trajectory()
        self._steps: list[tuple[EnvStep, torch.Tensor | None]] = []
        """(results of a decision, bootstrap values); the first one is the start, without rewards."""

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return output.env.obs

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return output.info

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        step = output.env
        if step.intervene_actions is not None:
            assert step.intervene_flags is not None, "an intervention has flags"
            self._trajectory.correct(step.intervene_actions, step.intervene_flags)
        # As RLinf's `compute_bootstrap_rewards`: without `auto_reset` no values are added to rewards.
        values = answer["bootstrap_values"] if self._resets else None
        self._steps.append((step.without_observations(), values))
        self._trajectory.see(step, answer["prev_values"])

    async def complete(self, output: ShardOutput) -> None:
        """Wait for the rewards of a reward model, for all decisions of the rollout."""
        for step in (*(step for step, _ in self._steps), output.env):
            await step.scored()

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        self._trajectory.decide(inputs, answer["prev_logprobs"], version=answer["version"])

    def rollout(self) -> Tree:
        for step, values in self._steps:
            self._trajectory.reward(step.rewards_with(values, self._algorithm))
            if step.model is not None:
                self._own_episodes.append({MODEL_REWARDS: step.model.model.float().flatten()})
                if step.model.spread is not None:
                    self._trajectory.spread(*step.model.spread)
        return self._trajectory.whole()
