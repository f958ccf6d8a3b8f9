"""veRL's config as our judge and our settings read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.view import View, key

ACTOR_SECTION = "actor_rollout_ref.actor"
FSDP_SECTION = f"{ACTOR_SECTION}.fsdp_config"
UNITS_KEY = f"{FSDP_SECTION}.wrap_policy.transformer_layer_cls_to_wrap"
OPTIM_SECTION = f"{ACTOR_SECTION}.optim"
MODEL_SECTION = "actor_rollout_ref.model"
ROLLOUT_SECTION = "actor_rollout_ref.rollout"


@dataclass(frozen=True, kw_only=True)
class VerlView(View):
    """The keys of a run in trainer mode `vla_async`; the table of keys judges their types.

    Keys that every run needs have no default here. Other defaults stand for a null; an absent key has veRL's
    own default (`config.filled_in`).
    """

    estimator: str = key("algorithm.adv_estimator")
    gamma: float = key("algorithm.gamma")
    lam: float = key("algorithm.lam")
    norm_by_std: bool = key("algorithm.norm_adv_by_std_in_grpo", False)
    value_clip: float = key("critic.cliprange_value")

    loss: str = key(f"{ACTOR_SECTION}.policy_loss.loss_mode", "vanilla")
    aggregation: str | None = key(f"{ACTOR_SECTION}.loss_agg_mode")
    entropy_coeff: float = key(f"{ACTOR_SECTION}.entropy_coeff", 0)
    update_epoch: int = key(f"{ACTOR_SECTION}.ppo_epochs", 1)
    mini_batch_size: int = key(f"{ACTOR_SECTION}.ppo_mini_batch_size")
    """Counts groups (veRL's prompts), as `train_batch_size` does."""
    micro_batch_size: int = key(f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu")
    shuffles: bool = key(f"{ACTOR_SECTION}.shuffle", False)
    seed: int = key(f"{ACTOR_SECTION}.data_loader_seed", 0)
    loaded_contents: str | list[str] = key(f"{ACTOR_SECTION}.checkpoint.load_contents", [])
    saved_contents: str | list[str] = key(f"{ACTOR_SECTION}.checkpoint.save_contents", [])
    optimizer: str | None = key(f"{OPTIM_SECTION}.optimizer")
    optimizer_package: str | None = key(f"{OPTIM_SECTION}.optimizer_impl")
    optimizer_arguments: Mapping[str, Any] = key(f"{OPTIM_SECTION}.override_optimizer_config", {})
    learning_rate: float = key(f"{OPTIM_SECTION}.lr")
    weight_decay: float = key(f"{OPTIM_SECTION}.weight_decay", 0.0)
    betas: list[float] = key(f"{OPTIM_SECTION}.betas")

    fsdp_size: int = key(f"{FSDP_SECTION}.fsdp_size", -1)
    units: str | list[str] = key(UNITS_KEY, [])
    reshards: bool = key(f"{FSDP_SECTION}.reshard_after_forward", True)
    accumulates: bool = key(f"{FSDP_SECTION}.use_no_sync_for_gradient_accumulation", False)
    stored_precision: str = key(f"{FSDP_SECTION}.model_dtype", "fp32")
    learner_precision: str = key(f"{FSDP_SECTION}.mixed_precision.param_dtype", "bf16")

    lora_rank: int = key(f"{MODEL_SECTION}.lora_rank", 0)
    lora_alpha: int = key(f"{MODEL_SECTION}.lora_alpha", 16)
    lora_targets: str | list[str] | None = key(f"{MODEL_SECTION}.target_modules")
    lora_excluded: str | list[str] | None = key(f"{MODEL_SECTION}.exclude_modules")

    group_size: int = key(f"{ROLLOUT_SECTION}.n", 1)
    """The number of trajectories with the same initial state."""
    rollout_nodes: int = key(f"{ROLLOUT_SECTION}.nnodes", 0)
    rollout_gpus_per_node: int = key(f"{ROLLOUT_SECTION}.n_gpus_per_node", 1)
    train_batch_size: int = key("data.train_batch_size")

    train: Mapping[str, Any] | None = key("env.train")
    evaluation: Mapping[str, Any] | None = key("env.eval")
    env_workers: int = key("env.workers", 1)
    stages: int = key("env.stages", 1)
    total_num_envs: int = key("env.train.total_num_envs")
    env_seed: int | None = key("env.train.seed")

    model: Mapping[str, Any] = key("vla.model", {})
    model_type: str | None = key("vla.model.model_type")
    num_action_chunks: int = key("vla.model.num_action_chunks")
    action_dim: int = key("vla.model.action_dim")
    add_value_head: bool | None = key("vla.model.add_value_head")
    inference_precision: str | None = key("vla.model.precision")
    ratio_level: RatioLevel = key("vla.ratio_level", "chunk")
    first_weights: str | None = key("vla.ckpt_path")
    placement: Mapping[str, Any] = key("vla.placement", {})
    own_inference_ranks: int | None = key("vla.inference.ranks")

    device: str | None = key("trainer.device")
    nodes: int = key("trainer.nnodes")
    gpus_per_node: int = key("trainer.n_gpus_per_node")
    steps: int = key("trainer.total_training_steps")
    logger: str | list[str] | None = key("trainer.logger")
    callback: str | None = key("trainer.checkpoint_callback_class")
    save_interval: int = key("trainer.save_freq", -1)
    kept_checkpoints: int | None = key("trainer.max_actor_ckpt_to_keep")
    removes_previous: bool = key("trainer.remove_previous_ckpt_in_save", False)
    test_interval: int = key("trainer.test_freq", -1)
    tests_before: bool = key("trainer.val_before_train", False)
    resume_mode: str | None = key("trainer.resume_mode")
    resumed_path: str | None = key("trainer.resume_from_path")

    ray_arguments: Mapping[str, Any] = key("ray_kwargs.ray_init", {})
    ray_address: str | None = key("ray_kwargs.ray_init.address")
    ray_cpus: int | None = key("ray_kwargs.ray_init.num_cpus")
    ray_resources: Mapping[str, Any] = key("ray_kwargs.ray_init.resources", {})

    @property
    def evaluates(self) -> bool:
        """True if the run has evaluations."""
        # veRL's -1 means never, and so does 0.
        return self.test_interval > 0 or self.tests_before

    @property
    def learner_ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def inference_ranks(self) -> int:
        """`vla.inference.ranks`, else the number of accelerators in veRL's rollout section, else 1."""
        return self.own_inference_ranks or self.rollout_nodes * self.rollout_gpus_per_node or 1

    @property
    def starts_ray(self) -> bool:
        """True if the run starts a Ray cluster of one node itself."""
        return not self.ray_address and self.nodes == 1
