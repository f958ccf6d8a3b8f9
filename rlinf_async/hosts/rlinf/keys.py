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
from rlinf_async.hosts.judge.keys import Fate, Key, Table, rows, under
from rlinf_async.hosts.judge.kinds import (
    ANYTHING,
    COUNT_KIND,
    INTERVAL_KIND,
    NOT_NEGATIVE,
    POSITIVE_NUMBER,
    SEED_KIND,
    SHARE_KIND,
    SIZE_KIND,
    Block,
    Flag,
    Kind,
    Listed,
    Names,
    Or,
    Real,
    Text,
    Whole,
)
from rlinf_async.hosts.rlinf.models import TOKEN_MODELS
from rlinf_async.hosts.rlinf.settings import OFFLOAD_KEYS, REWARD_MODES

LEVEL_KIND = Names(("token_level", "action_level", "chunk_level"))
PRECISION_KIND = Or(
    Names(("bf16", "bf16-mixed", "fp16", "16", "16-mixed", "fp32", "32", "32-true")), (16, 32)
)


def _scores_old_tokens(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return asynchrony.off_policy and lookup(cfg, "actor.model.model_type") in TOKEN_MODELS


def _shards_by_fsdp1(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    # RLinf's `validate_cfg` takes FSDP1 where there is no key, and FSDP2 does not read the other.
    return lookup(cfg, "actor.fsdp_config.strategy") in (None, "fsdp")


def _refused_row(name: str, remedy: str, override: str, **more: Any) -> Key:
    return Key(name=name, fate="refused", remedy=remedy, override=override, **more)


def _false(name: str, why: str, **more: Any) -> Key:
    return _refused_row(name, f"set it to false: {why}", f"{name}=false", kind=Flag(), **more)


def _true(name: str, why: str) -> Key:
    remedy, serves = f"set it to true: {why}", (None, True)
    return _refused_row(name, remedy, f"{name}=true", kind=Flag(), serves=lambda value: value in serves)


def _absent(name: str, why: str, **more: Any) -> Key:
    return _refused_row(name, f"remove it: {why}", f"~{name}", **more)


REFUSED_KEYS = (
    _absent("runner.use_training_pipeline", "async.streamer takes its place", kind=Flag()),
    _absent("runner.enable_decoupled_mode", "async.rollout takes its place", kind=Flag()),
    _false("rollout.collect_transitions", "only on-policy losses are supported"),
    _true("rollout.collect_prev_infos", "the learner needs what the policy thought of its actions"),
    _absent("rollout.expert_model", "DAgger is not supported"),
    _absent(
        "cluster.profiling",
        "profiling opens windows per synchronous step",
        kind=Block(),
        serves=lambda block: not block or not block.get("enabled", True),
    ),
    _false("env.train.smooth_intervene", "every action is asked of the policy"),
    _false(
        "cluster.net_emulation.enabled", "actions and observations travel on ways that it does not slow down"
    ),
    _true("rollout.collect_final_values", "advantages are estimated with the values of final observations"),
    _refused_row(
        "runner.weight_sync_interval",
        "set it to 1: weights are published after every step, and async.train.max_staleness bounds their age",
        "runner.weight_sync_interval=1",
        kind=Whole(1),
        serves=lambda value: value in (None, 1),
        null=1,  # which RLinf compares with 0
    ),
    _refused_row(
        "rollout.sampling_params.top_k",
        "set it to -1: an older policy's token outside of the newer one's top has no log-probability",
        "rollout.sampling_params.top_k=-1",
        kind=Whole(-1),
        serves=lambda top_k: top_k is None or top_k <= 0,
        levels=("train",),
        where=_scores_old_tokens,
    ),
    _refused_row(
        "actor.fsdp_config.sharding_strategy",
        "set it to full_shard or shard_grad_op: RLinf gives FSDP one group of ranks, and hybrid_shard, which "
        "wants two, ends every learner rank",
        "actor.fsdp_config.sharding_strategy=full_shard",
        kind=Names(("full_shard", "shard_grad_op", "hybrid_shard", "no_shard")),
        serves=lambda strategy: strategy != "hybrid_shard",
        where=_shards_by_fsdp1,
    ),
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
    kind: Kind
    settings: Mapping[str, Any]
    """Keys by section and name; a value None stands for the value that RLinf's key has."""


KEY_TRANSLATIONS = (
    # Both count policy versions, which are global steps: older trajectories are not trained.
    Translation("algorithm.staleness_threshold", Whole(0), {"train.max_staleness": None}),
    # RLinf leaves out samples whose weight pi_prox / mu is above the threshold, and divides by the rest. The
    # nearest of ours has the same threshold and cuts weights to it.
    Translation(
        "algorithm.behave_weight_threshold",
        Real(above=0),
        {"train.correction": "tis", "advanced.max_weight": None},
    ),
)


SERVED_ROWS = (
    *rows(
        COUNT_KIND,
        """
        runner.max_epochs env.train.total_num_envs env.train.group_size env.train.max_steps_per_rollout_epoch
        actor.micro_batch_size actor.global_batch_size actor.model.num_action_chunks
        """,
        required=True,
    ),
    *rows(
        COUNT_KIND,
        """
        actor.optim.total_training_steps algorithm.group_size algorithm.update_epoch cluster.num_nodes
        env.train.rollout_epoch env.eval.total_num_envs env.eval.group_size
        env.eval.rollout_epoch env.eval.max_steps_per_rollout_epoch rollout.pipeline_stage_num
        runner.seq_length runner.max_prompt_length weight_syncer.bucket.bucket_size
        """,
    ),
    # Some of RLinf's environments end by themselves, and its critics of tokens need no bound.
    *rows(
        COUNT_KIND,
        "actor.model.lora_rank env.train.max_episode_steps env.eval.max_episode_steps",
        nullable=True,
    ),
    *rows(SIZE_KIND, "actor.optim.critic_warmup_steps"),
    # RLinf compares them with 0, which null ends; -1 is never, no bound, and by the ratio of warm-up.
    *rows(
        INTERVAL_KIND,
        "runner.max_steps runner.save_interval runner.val_check_interval actor.optim.lr_warmup_steps",
        null=-1,
    ),
    *rows(SEED_KIND, "actor.seed env.train.seed env.eval.seed"),
    *rows(
        NOT_NEGATIVE,
        """
        actor.optim.lr actor.optim.value_lr actor.optim.adam_eps actor.optim.weight_decay actor.optim.min_lr
        actor.sft_loss_weight algorithm.clip_ratio_high algorithm.entropy_bonus
        """,
    ),
    *rows(
        POSITIVE_NUMBER,
        """
        actor.optim.clip_grad algorithm.value_clip algorithm.huber_delta
        rollout.sampling_params.temperature_train rollout.sampling_params.repetition_penalty
        """,
    ),
    *rows(
        SHARE_KIND,
        """
        algorithm.gamma algorithm.gae_lambda algorithm.clip_ratio_low actor.optim.adam_beta1
        actor.optim.adam_beta2 actor.optim.lr_warmup_steps_ratio rollout.sampling_params.top_p
        """,
    ),
    *rows(SHARE_KIND, "actor.optim.min_lr_rate", nullable=True),
    # RLinf's actor loss asserts it, while it trains.
    *rows(Real(above=1), "algorithm.clip_ratio_c", nullable=True),
    *rows(
        Real(),
        """
        algorithm.clip_log_ratio_max algorithm.clip_log_ratio_min
        algorithm.rewards_lower_bound algorithm.rewards_upper_bound
        """,
        nullable=True,
    ),
    *rows(
        Real(),
        """
        actor.optim.num_cycles algorithm.reward_coef reward.env_reward_weight reward.reward_weight
        env.train.reward_coef env.eval.reward_coef rollout.sampling_params.temperature_eval
        """,
    ),
    *rows(LEVEL_KIND, "algorithm.entropy_type"),
    # Newer versions of RLinf have more of them: `losses` says which are served.
    *rows(Text("a level of RLinf's"), "algorithm.logprob_type"),
    *rows(Names(("chunk_level", "action_level")), "algorithm.reward_type"),
    *rows(Names(REWARD_MODES), "reward.reward_mode"),
    *rows(Names(("standard", "always")), "algorithm.bootstrap_type"),
    *rows(Names(("torch", "flash_attn", "liger_kernel")), "algorithm.entropy_op_type"),
    *rows(Names(("fsdp", "fsdp2")), "actor.fsdp_config.strategy"),
    *rows(Names(("pre", "post")), "actor.fsdp_config.backward_prefetch", nullable=True),
    *rows(Names(("fp16", "bf16", "fp32")), "actor.fsdp_config.amp_autocast.precision"),
    *rows(Flag(), "actor.fsdp_config.amp_autocast.enabled actor.fsdp_config.grad_scaler.enabled"),
    *rows(Names(("constant", "cosine", "torch_constant", "torch_cosine")), "actor.optim.lr_scheduler"),
    *rows(
        PRECISION_KIND,
        "actor.model.precision rollout.model.precision",
        under("actor.fsdp_config.mixed_precision", "param_dtype reduce_dtype buffer_dtype"),
        nullable=True,
    ),
    *rows(
        Flag(),
        """
        actor.fsdp_config.cpu_offload actor.fsdp_config.gradient_checkpointing actor.model.add_q_head
        actor.model.add_value_head actor.model.is_lora algorithm.filter_rewards algorithm.normalize_advantages
        env.train.ignore_terminations env.eval.auto_reset env.eval.ignore_terminations
        rollout.enable_cuda_graph rollout.enable_torch_compile reward.history_reward_assign
        reward.standalone_realworld reward.use_reward_model rollout.sampling_params.do_sample runner.only_eval
        env.train.video_cfg.save_video env.train.video_cfg.decisions_only env.train.data_collection.enabled
        env.eval.video_cfg.save_video env.eval.video_cfg.decisions_only env.eval.data_collection.enabled
        critic.use_critic_model
        """,
        nullable=True,  # which is false to Python
    ),
    *rows(
        Text(),
        """
        actor.model.lora_path actor.model.model_path algorithm.adv_type algorithm.loss_type
        env.train.env_class env.eval.env_class rollout.model.model_path runner.ckpt_path
        runner.logger.project_name runner.resume_dir
        """,
        nullable=True,
    ),
    *rows(
        Text(),
        """
        env.train.env_type env.eval.env_type runner.logger.experiment_name runner.logger.log_path
        weight_syncer.type
        """,
    ),
    *rows(Text(), "actor.training_backend runner.task_type", required=True),
    *rows(Flag(), "env.train.auto_reset", required=True),
    *rows(Text("a name of RLinf's models"), "actor.model.model_type", required=True),
    *rows(Listed(Text("the name of a logger")), "runner.logger.logger_backends", nullable=True),
    *rows(
        Block(),
        """
        actor.model actor.optim actor.fsdp_config actor.fsdp_config.mixed_precision env.train
        algorithm cluster.component_placement rollout
        """,
        required=True,
    ),
    *rows(Block(), "rollout.model runner.logger"),
    *rows(Block(), under("actor.fsdp_config", "amp_autocast grad_scaler")),
    *rows(Block(), "critic env.eval rollout.sampling_params weight_syncer", nullable=True),
)
OPEN_ROWS = rows(
    ANYTHING,
    """
    actor.channel* actor.config_name actor.enable_sft_co_train actor.fsdp_config* actor.group_name
    actor.model* actor.openpi_data* actor.optim* actor.sft_data_path algorithm.clip_log_ratio_m??
    algorithm.clip_ratio_* algorithm.length_params.* algorithm.sampling_params.* async*
    cluster.component_placement* cluster.node_groups* cluster.auto_restart* critic* data* env.channel*
    env.eval* env.group_name env.train* hydra* reward* rollout.channel* rollout.group_name rollout.model*
    rollout.sampling_params* rollout.torch_compile_mode rollout.unnorm_key router_server_args*
    runner.logger* runner.per_worker_log_path weight_syncer*
    """,
)
"""Keys that mean here what they mean in RLinf: its own code reads them, whatever they hold."""
UNREAD = rows(
    ANYTHING,
    """
    actor.num_gpus actor.num_steps algorithm.kl_beta algorithm.kl_penalty algorithm.loss_agg_func
    algorithm.ratio_clip_eps env.enable_offload rollout.backend rollout.enforce_eager
    rollout.generation_backend rollout.gpu_memory_utilization rollout.sync_weight_nccl_max_ctas
    runner.eval_policy_path
    """,
    fate="unread",
)
"""Keys of example configs that RLinf's embodied workers and runners do not read either."""
WITHOUT_EFFECT = tuple(
    Key(name=name, fate="without effect", why=why)
    for name, why in {
        "actor.sync_weight_no_wait": "weights always travel while rollouts go on",
        "algorithm.advantage_mode": "only advantages of video models read it",
        "algorithm.dagger*": "DAgger alone reads it",
        "algorithm.on_policy_min_ratio": "a batch is what comes first within async.train.max_staleness",
        "algorithm.rollout_store_size_per_rank": "a batch has env.train.total_num_envs x rollout_epoch "
        "trajectories, each trained once",
        "algorithm.shuffle_rollout": "only runner.use_training_pipeline reads it",
        "env.obs_compression*": "it changes no observation, and here they travel in memory or as they are",
        "reward.enable_offload": "the reward model scores whenever environments have stepped",
        "rollout.recompute_logprobs": "async.advanced.proximal says how the proximal policy is found",
        "rollout.rlt_feature_model*": "RLT alone reads it",
        "rollout.rollout_queue_size": "only runner.enable_decoupled_mode reads it",
        "runner.expert_ckpt_path": "DAgger alone reads it",
        "runner.overlap_env_bootstrap": "shards reset by themselves while others work",
        "runner.per_worker_log": "metrics are logged once, not once more for every worker",
    }.items()
)
"""Keys that RLinf's loops read and ours do not, and why nothing is lost, or what is."""
CHANGED_ROWS = tuple(
    Key(name=name, kind=Flag(), fate="changed", why=why) for name, why in OFFLOAD_KEYS.items()
)
TRANSLATED_ROWS = (
    *(
        Key(name=old, kind=COUNT_KIND, fate="translated", why=f"{section}.{new}")
        for old, section, new in MOVED_KEYS
    ),
    *(
        Key(
            name=row.key,
            kind=row.kind,
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
