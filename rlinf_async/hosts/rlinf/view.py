"""RLinf's config as our judge and our settings read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.hosts.rlinf.losses import DISTILLATION, has_ratio
from rlinf_async.hosts.view import View, key


@dataclass(frozen=True, kw_only=True)
class RLinfView(View):
    """The keys of an embodied run; the table of keys judges their types."""

    loss: str | None = key("algorithm.loss_type")
    advantage: str | None = key("algorithm.adv_type")
    group_size: int = key("algorithm.group_size", 1)
    filters_rewards: bool = key("algorithm.filter_rewards", False)
    ratio_level: str | None = key("algorithm.logprob_type")
    reward_type: str | None = key("algorithm.reward_type")
    entropy_bonus: float = key("algorithm.entropy_bonus", 0)
    entropy_type: str | None = key("algorithm.entropy_type")
    update_epoch: int = key("algorithm.update_epoch", 1)
    correction: str = key("async.train.correction", "none")

    model: Mapping[str, Any] = key("actor.model", {})
    model_type: str | None = key("actor.model.model_type")
    has_adapters: bool = key("actor.model.is_lora", False)
    num_action_chunks: int = key("actor.model.num_action_chunks", 1)
    add_value_head: bool = key("actor.model.add_value_head", False)
    optim: Mapping[str, Any] = key("actor.optim", {})
    backend: str = key("actor.training_backend", "fsdp")
    fsdp_strategy: str = key("actor.fsdp_config.strategy", "fsdp")
    micro_batch_size: int = key("actor.micro_batch_size")
    global_batch_size: int = key("actor.global_batch_size")
    seed: int = key("actor.seed", 0)
    trains_beside: bool = key("actor.enable_sft_co_train", False)
    """True if RLinf's actor adds a supervised loss to every pass."""

    train: Mapping[str, Any] = key("env.train", {})
    alike: int = key("env.train.group_size", 1)
    """Neighbours with equal initial states; RLinf compares `group_size` neighbours."""
    rollout_epoch: int = key("env.train.rollout_epoch", 1)
    total_num_envs: int = key("env.train.total_num_envs")
    max_steps_per_rollout_epoch: int = key("env.train.max_steps_per_rollout_epoch")
    auto_reset: bool = key("env.train.auto_reset", False)
    ignore_terminations: bool = key("env.train.ignore_terminations", False)
    evaluation: Mapping[str, Any] | None = key("env.eval")

    rollout: Mapping[str, Any] = key("rollout", {})
    rollout_model_type: str | None = key("rollout.model.model_type")
    stages: int = key("rollout.pipeline_stage_num", 1)
    teacher: Mapping[str, Any] | None = key("rollout.expert_model")

    runner: Mapping[str, Any] = key("runner", {})
    resume_dir: str | None = key("runner.resume_dir")
    only_eval: bool = key("runner.only_eval", False)
    val_check_interval: int = key("runner.val_check_interval", -1)
    save_interval: int = key("runner.save_interval", -1)
    loggers: str | Sequence[str] | None = key("runner.logger.logger_backends")

    uses_reward_model: bool = key("reward.use_reward_model", False)
    is_robots_own_reward: bool = key("reward.standalone_realworld", False)
    assigns_history: bool = key("reward.history_reward_assign", False)
    placement: Mapping[str, Any] = key("cluster.component_placement", {})
    nodes: int = key("cluster.num_nodes", 1)
    node_groups: Any = key("cluster.node_groups")

    @property
    def distils(self) -> bool:
        """True if the config asks for on-policy distillation, by its loss or its advantages."""
        return DISTILLATION in (self.loss, self.advantage)

    @property
    def has_ratio(self) -> bool:
        """True if the loss compares probabilities of two policies."""
        return has_ratio(self.loss)

    @property
    def scored_by_workers(self) -> bool:
        """True if RLinf's reward workers score observations. A real robot's env worker calls its own reward
        model.
        """
        return self.uses_reward_model and not self.is_robots_own_reward

    @property
    def asks_for_evaluation(self) -> bool:
        """True if evaluations are asked for, which need the block `env.eval`."""
        return self.val_check_interval > 0

    @property
    def env_sections(self) -> dict[str, Mapping[str, Any]]:
        """The sections of environments that a run uses, by mode; `eval` if it has evaluations."""
        if not self.asks_for_evaluation or self.evaluation is None:
            return {"train": self.train}
        return {"train": self.train, "eval": self.evaluation}

    @property
    def unmasking_keys(self) -> list[str]:
        """The keys that are true and have decisions after the end of an episode trained."""
        values = {
            "env.train.auto_reset": self.auto_reset,
            "env.train.ignore_terminations": self.ignore_terminations,
        }
        return [name for name, value in values.items() if value]
