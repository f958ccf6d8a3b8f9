"""RLinf's defaults: the values that its code gives to keys."""

DEFAULTS = {
    "actor.fsdp_config.strategy": "fsdp",
    "actor.optim.adam_eps": 1e-8,
    "actor.optim.lr_scheduler": "constant",
    "actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor.optim.min_lr": 0.0,
    "actor.optim.num_cycles": 0.5,
    "actor.optim.weight_decay": 0.01,
    "actor.sft_loss_weight": 0.1,
    "algorithm.bootstrap_type": "standard",
    "algorithm.entropy_op_type": "torch",
    "algorithm.gae_lambda": 1,
    "algorithm.update_epoch": 1,
    "env.eval.group_size": 1,
    "env.eval.rollout_epoch": 1,
    "env.train.rollout_epoch": 1,
    "reward.env_reward_weight": 0.0,
    "reward.reward_weight": 1.0,
    "rollout.sampling_params.repetition_penalty": 1.0,
    "rollout.sampling_params.temperature_eval": 0.0,
    "rollout.sampling_params.temperature_train": 1.0,
    "rollout.sampling_params.top_p": 1.0,
}
"""The values that RLinf's code gives to keys that a config lacks; of most others it needs a value."""
