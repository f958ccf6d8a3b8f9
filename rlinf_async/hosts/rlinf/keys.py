"""The fate of each key of RLinf's config here, and its allowed values.

A key that is in none of the rows is undecided: a newer RLinf has it, or it is unknown. A test finds it in
RLinf's example configs and in the sources of the classes that ours replace, and `undecided` in a config.
Where RLinf's own workers and runners read such a key, the classes that take their places would ignore it: it
is refused. Elsewhere RLinf's own code still reads it, or no code does, and a note names it: `readers` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.judge.keys import Fate, Key, Table
from rlinf_async.hosts.judge.kinds import BLOCK, COUNT_KIND, FLAG, kind_of
from rlinf_async.hosts.judge.rows import refused, rows, without_effect
from rlinf_async.hosts.rlinf.models import TOKEN_MODELS
from rlinf_async.hosts.rlinf.settings import OFFLOAD_KEYS, REWARD_MODES


def _scores_old_tokens(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return asynchrony.off_policy and lookup(cfg, "actor.model.model_type") in TOKEN_MODELS


def _shards_by_fsdp1(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    # RLinf's `validate_cfg` takes FSDP1 where there is no key, and FSDP2 does not read the other.
    return lookup(cfg, "actor.fsdp_config.strategy") in (None, "fsdp")


REFUSED_SETTINGS = """
~runner.use_training_pipeline: async.streamer takes its place
~runner.enable_decoupled_mode: async.rollout takes its place
rollout.collect_transitions=false: only on-policy losses are supported
rollout.collect_prev_infos=true: the learner needs what the policy thought of its actions
algorithm.recompute_logprobs=false: it would replace the log-probabilities of the policy that acted
~rollout.expert_model: DAgger is not supported
~cluster.profiling: profiling opens windows per synchronous step
env.train.smooth_intervene=false: every action is asked of the policy
cluster.net_emulation.enabled=false: actions and observations travel on ways that it does not slow down
rollout.collect_final_values=true: advantages are estimated with the values of final observations
runner.weight_sync_interval=1: weights are published every step; async.train.max_staleness bounds their age
rollout.sampling_params.top_k=-1: an older policy's token outside of the newer's top has no log-probability
actor.fsdp_config.sharding_strategy=full_shard: hybrid_shard wants two groups of ranks; RLinf gives one
"""
REFUSED_KEYS = tuple(
    refused(
        REFUSED_SETTINGS,
        {
            "runner.use_training_pipeline": {"kind": FLAG},
            "runner.enable_decoupled_mode": {"kind": FLAG},
            "cluster.profiling": {
                "kind": BLOCK,
                "serves": lambda block: not block or not block.get("enabled", True),
            },
            "runner.weight_sync_interval": {"null": 1},  # RLinf compares it with 0
            "rollout.sampling_params.top_k": {
                "serves": lambda top_k: top_k is None or top_k <= 0,
                "levels": ("train",),
                "where": _scores_old_tokens,
            },
            "actor.fsdp_config.sharding_strategy": {
                "kind": kind_of("one of full_shard, shard_grad_op, hybrid_shard, no_shard"),
                "serves": lambda strategy: strategy != "hybrid_shard",
                "where": _shards_by_fsdp1,
            },
        },
    )
)
MOVED_KEYS = (
    ("algorithm.rollout_epoch", "env.train", "rollout_epoch"),
    ("algorithm.eval_rollout_epoch", "env.eval", "rollout_epoch"),
)
"""Keys of RLinf 0.2 that its `validate_cfg` moves, unless the new one is there, to a section and a name."""


@dataclass(frozen=True)
class Translation:
    """A key of RLinf's asynchronous PPO, and the setting under `async` that does the same."""

    key: str
    kind: str
    """The words of the kind of its values."""
    settings: Mapping[str, Any]
    """Keys by section and name; a value None stands for the value that RLinf's key has."""


KEY_TRANSLATIONS = (
    # Both count policy versions, which are global steps: older trajectories are not trained.
    Translation(
        "algorithm.staleness_threshold", "a whole number of at least 0", {"train.max_staleness": None}
    ),
    # RLinf leaves out samples whose weight pi_prox / mu is above the threshold, and divides by the rest. The
    # nearest of ours has the same threshold and cuts weights to it.
    Translation(
        "algorithm.behave_weight_threshold",
        "a finite number above 0",
        {"train.correction": "tis", "advanced.max_weight": None},
    ),
)


SERVED_ROWS = rows(
    f"""
a whole number of at least 1 (needed)
    runner.max_epochs env.train.total_num_envs env.train.group_size env.train.max_steps_per_rollout_epoch
    actor.micro_batch_size actor.global_batch_size actor.model.num_action_chunks
a whole number of at least 1
    actor.optim.total_training_steps algorithm.group_size algorithm.update_epoch cluster.num_nodes
    env.train.rollout_epoch env.eval.total_num_envs env.eval.group_size env.eval.rollout_epoch
    env.eval.max_steps_per_rollout_epoch rollout.pipeline_stage_num runner.seq_length
    runner.max_prompt_length weight_syncer.bucket.bucket_size
a whole number of at least 1 (or null)
    actor.model.lora_rank env.train.max_episode_steps env.eval.max_episode_steps
a whole number of at least 0
    actor.optim.critic_warmup_steps
a whole number of at least -1 (null is -1)
    runner.max_steps runner.save_interval runner.val_check_interval actor.optim.lr_warmup_steps
a whole number from 0 to 4294967295
    actor.seed env.train.seed env.eval.seed
a finite number of at least 0
    actor.optim.lr actor.optim.value_lr actor.optim.adam_eps actor.optim.weight_decay actor.optim.min_lr
    actor.sft_loss_weight algorithm.clip_ratio_high algorithm.entropy_bonus
a finite number above 0
    actor.optim.clip_grad algorithm.value_clip algorithm.huber_delta
    rollout.sampling_params.temperature_train rollout.sampling_params.repetition_penalty
a number from 0 to 1
    algorithm.gamma algorithm.gae_lambda algorithm.clip_ratio_low actor.optim.adam_beta1
    actor.optim.adam_beta2 actor.optim.lr_warmup_steps_ratio rollout.sampling_params.top_p
a number from 0 to 1 (or null)
    actor.optim.min_lr_rate
a finite number above 1 (or null)
    algorithm.clip_ratio_c
a finite number (or null)
    algorithm.clip_log_ratio_max algorithm.clip_log_ratio_min algorithm.rewards_lower_bound
    algorithm.rewards_upper_bound
a finite number
    actor.optim.num_cycles algorithm.reward_coef reward.env_reward_weight reward.reward_weight
    env.train.reward_coef env.eval.reward_coef rollout.sampling_params.temperature_eval
one of token_level, action_level, chunk_level
    algorithm.entropy_type
a level of RLinf's
    algorithm.logprob_type
one of chunk_level, action_level
    algorithm.reward_type
one of {", ".join(REWARD_MODES)}
    reward.reward_mode
one of standard, always
    algorithm.bootstrap_type
one of torch, flash_attn, liger_kernel
    algorithm.entropy_op_type
one of fsdp, fsdp2
    actor.fsdp_config.strategy
one of pre, post (or null)
    actor.fsdp_config.backward_prefetch
one of fp16, bf16, fp32
    actor.fsdp_config.amp_autocast.precision
true or false
    actor.fsdp_config.amp_autocast.enabled actor.fsdp_config.grad_scaler.enabled
one of constant, cosine, torch_constant, torch_cosine
    actor.optim.lr_scheduler
one of bf16, bf16-mixed, fp16, 16, 16-mixed, fp32, 32, 32-true (or null)
    actor.model.precision rollout.model.precision actor.fsdp_config.mixed_precision.param_dtype
    actor.fsdp_config.mixed_precision.reduce_dtype actor.fsdp_config.mixed_precision.buffer_dtype
true or false (or null)
    actor.fsdp_config.cpu_offload actor.fsdp_config.gradient_checkpointing actor.model.add_q_head
    actor.model.add_value_head actor.model.is_lora algorithm.filter_rewards algorithm.normalize_advantages
    env.train.ignore_terminations env.eval.auto_reset env.eval.ignore_terminations rollout.enable_cuda_graph
    rollout.enable_torch_compile reward.history_reward_assign reward.standalone_realworld
    reward.use_reward_model rollout.sampling_params.do_sample runner.only_eval env.train.video_cfg.save_video
    env.train.video_cfg.decisions_only env.train.data_collection.enabled env.eval.video_cfg.save_video
    env.eval.video_cfg.decisions_only env.eval.data_collection.enabled critic.use_critic_model
a text (or null)
    actor.model.lora_path actor.model.model_path algorithm.adv_type algorithm.loss_type env.train.env_class
    env.eval.env_class rollout.model.model_path runner.ckpt_path runner.logger.project_name runner.resume_dir
a text
    env.train.env_type env.eval.env_type runner.logger.experiment_name runner.logger.log_path
    weight_syncer.type
a text (needed)
    actor.training_backend runner.task_type
true or false (needed)
    env.train.auto_reset
a name of RLinf's models (needed)
    actor.model.model_type
the name of a logger, or a list of them (or null)
    runner.logger.logger_backends
a block of keys (needed)
    actor.model actor.optim actor.fsdp_config actor.fsdp_config.mixed_precision env.train algorithm
    cluster.component_placement rollout
a block of keys
    rollout.model runner.logger actor.fsdp_config.amp_autocast actor.fsdp_config.grad_scaler
a block of keys (or null)
    critic env.eval rollout.sampling_params weight_syncer
"""
)
OPEN_ROWS = rows("""
anything
    actor.channel* actor.config_name actor.enable_sft_co_train actor.fsdp_config* actor.group_name
    actor.model* actor.openpi_data* actor.optim* actor.sft_data_path algorithm.clip_log_ratio_m??
    algorithm.clip_ratio_* algorithm.length_params.* algorithm.sampling_params.* async*
    cluster.component_placement* cluster.node_groups* cluster.auto_restart* critic* data* env.channel*
    env.eval* env.group_name env.train* hydra* reward* rollout.channel* rollout.group_name rollout.model*
    rollout.sampling_params* rollout.torch_compile_mode rollout.unnorm_key router_server_args*
    runner.logger* runner.per_worker_log_path weight_syncer*
""")
"""Keys that mean here what they mean in RLinf: its own code reads them, whatever they hold."""
UNREAD = rows(
    """
anything
    actor.num_gpus actor.num_steps algorithm.kl_beta algorithm.kl_penalty algorithm.loss_agg_func
    algorithm.ratio_clip_eps env.enable_offload rollout.backend rollout.enforce_eager
    rollout.generation_backend rollout.gpu_memory_utilization rollout.sync_weight_nccl_max_ctas
    runner.eval_policy_path
""",
    fate="unread",
)
"""Keys of example configs that RLinf's embodied workers and runners do not read either."""
WITHOUT_EFFECT = without_effect("""
weights always travel while rollouts go on
    actor.sync_weight_no_wait
only advantages of video models read it
    algorithm.advantage_mode
DAgger alone reads it
    algorithm.dagger* runner.expert_ckpt_path
a batch is what comes first within async.train.max_staleness
    algorithm.on_policy_min_ratio
a batch has env.train.total_num_envs x rollout_epoch trajectories, each trained once
    algorithm.rollout_store_size_per_rank
only runner.use_training_pipeline reads it
    algorithm.shuffle_rollout
it changes no observation, and here they travel in memory or as they are
    env.obs_compression*
the reward model scores whenever environments have stepped
    reward.enable_offload
async.advanced.proximal says how the proximal policy is found
    rollout.recompute_logprobs
RLT alone reads it
    rollout.rlt_feature_model*
only runner.enable_decoupled_mode reads it
    rollout.rollout_queue_size
shards reset by themselves while others work
    runner.overlap_env_bootstrap
metrics are logged once, not once more for every worker
    runner.per_worker_log
""")
"""Keys that RLinf's loops read and ours do not, and why nothing is lost, or what is."""
CHANGED_ROWS = tuple(Key(name=name, kind=FLAG, fate="changed", why=why) for name, why in OFFLOAD_KEYS.items())
TRANSLATED_ROWS = (
    *(
        Key(name=old, kind=COUNT_KIND, fate="translated", why=f"{section}.{new}")
        for old, section, new in MOVED_KEYS
    ),
    *(
        Key(
            name=row.key,
            kind=kind_of(row.kind),
            fate="translated",
            why=", ".join(f"async.{name}" for name in row.settings),
        )
        for row in KEY_TRANSLATIONS
    ),
)
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
TABLE = Table(
    (
        *REFUSED_KEYS,
        *CHANGED_ROWS,
        *TRANSLATED_ROWS,
        *WITHOUT_EFFECT,
        *UNREAD,
        *SERVED_ROWS,
        *OPEN_ROWS,
    ),
    default_of=DEFAULTS.get,
)
"""Every key of RLinf's config."""


KNOWN_SECTIONS = frozenset({*TABLE.sections, "defaults"})
"""The sections that RLinf's embodied runs have, and ours; a block beside them is a user's own."""


def fate(key: str) -> Fate | None:
    """Return the fate of a dotted key; None if it is undecided."""
    row = TABLE.find(key)
    return row.fate if row else None
