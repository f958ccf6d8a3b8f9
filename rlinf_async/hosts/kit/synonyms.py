"""Keys by which the frameworks name one and the same thing."""

from __future__ import annotations

VERL_VLA = ("", "rollout.", "env_loop.")
"""The blocks in which verl-vla, and veRL's experiment before it, have had their number of stages."""

KEY_SYNONYMS = (
    ("runner.max_epochs", "runner.max_steps", "trainer.total_training_steps", "settings.batches"),
    ("runner.logger.log_path", "vla.run_dir", "run_dir"),
    ("env.train.total_num_envs", "settings.total_envs", "env.train.num_envs"),
    ("env.train.rollout_epoch", "algorithm.rollout_epoch", "settings.rollout_epochs"),
    ("env.train.max_episode_steps", "env.train.max_steps_per_rollout_epoch", "settings.horizon"),
    ("env.train.env_class", "env.env_class"),
    ("algorithm.group_size", "env.train.group_size", "actor_rollout_ref.rollout.n", "settings.group_size"),
    ("algorithm.adv_type", "algorithm.adv_estimator", "settings.algorithm"),
    ("algorithm.gamma", "settings.gamma"),
    ("algorithm.gae_lambda", "algorithm.lam", "settings.lam"),
    ("algorithm.update_epoch", "actor_rollout_ref.actor.ppo_epochs", "settings.update_epoch"),
    ("algorithm.clip_ratio_high", "actor_rollout_ref.actor.clip_ratio", "settings.clip"),
    ("algorithm.value_clip", "critic.cliprange_value", "settings.value_clip"),
    ("actor.optim.lr", "actor_rollout_ref.actor.optim.lr", "settings.lr"),
    ("actor.optim.value_lr", "critic.optim.lr", "settings.value_lr"),
    ("actor.optim.clip_grad", "actor_rollout_ref.actor.optim.clip_grad", "settings.clip_grad"),
    ("actor.seed", "actor_rollout_ref.actor.data_loader_seed", "settings.seed"),
    ("actor.global_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size", "settings.global_batch_size"),
    (
        "actor.micro_batch_size",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "settings.micro_batch_size",
    ),
    ("actor.model.model_type", "vla.model.model_type", "model.model_type"),
    ("actor.model.model_path", "vla.model.model_path", "env.actor.model.path"),
    ("rollout.pipeline_stage_num", "env.stages", *(f"env.{where}pipeline_stage_num" for where in VERL_VLA)),
    ("runner.save_interval", "trainer.save_freq"),
    ("runner.val_check_interval", "trainer.test_freq"),
    ("runner.ckpt_path", "vla.ckpt_path"),
    ("runner.resume_dir", "trainer.resume_from_path"),
    ("runner.logger.logger_backends", "trainer.logger"),
    ("cluster.num_nodes", "trainer.nnodes"),
)
"""Each row is one setting, whose numbers may be counted in units of the framework."""


def counterparts(key: str) -> list[str]:
    """The other names of what a dotted key is about."""
    return [name for row in KEY_SYNONYMS if key in row for name in row if name != key]
