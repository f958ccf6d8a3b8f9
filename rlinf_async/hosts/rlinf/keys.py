"""What becomes of each key of RLinf's config here: served, changed, translated, refused, or without effect.

A key that is in none of these tables is one that nobody has decided on; a test finds it in RLinf's example
configs and in the sources of the classes that ours replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from rlinf_async.core.nested import dotted
from rlinf_async.hosts.rlinf.offload import OFFLOADS
from rlinf_async.hosts.rlinf.refusals import REFUSALS
from rlinf_async.hosts.rlinf.translation import MOVED, TRANSLATIONS

Fate = Literal["served", "changed", "translated", "refused", "without effect", "unread"]

SERVED = (
    "actor.config_name",
    "actor.enable_sft_co_train",
    "actor.fsdp_config*",
    "actor.global_batch_size",
    "actor.group_name",
    "actor.micro_batch_size",
    "actor.model*",
    "actor.openpi_data*",
    "actor.optim*",
    "actor.seed",
    "actor.sft_data_path",
    "actor.sft_loss_weight",
    "actor.training_backend",
    "algorithm.adv_type",
    "algorithm.bootstrap_type",
    "algorithm.clip_log_ratio_m??",
    "algorithm.clip_ratio_*",
    "algorithm.entropy_bonus",
    "algorithm.entropy_op_type",
    "algorithm.entropy_type",
    "algorithm.filter_rewards",
    "algorithm.gae_lambda",
    "algorithm.gamma",
    "algorithm.group_size",
    "algorithm.huber_delta",
    "algorithm.length_params.*",
    "algorithm.logprob_type",
    "algorithm.loss_type",
    "algorithm.normalize_advantages",
    "algorithm.reward_coef",
    "algorithm.reward_type",
    "algorithm.rewards_*_bound",
    "algorithm.sampling_params.*",
    "algorithm.update_epoch",
    "algorithm.value_clip",
    "rollout.enable_cuda_graph",
    "rollout.enable_torch_compile",
    "rollout.torch_compile_mode",
    "rollout.group_name",
    "rollout.model*",
    "rollout.pipeline_stage_num",
    "rollout.sampling_params*",
    "rollout.unnorm_key",
    "runner.ckpt_path",
    "runner.logger*",
    "runner.max_epochs",
    "runner.max_prompt_length",
    "runner.max_steps",
    "runner.only_eval",
    "runner.per_worker_log_path",
    "runner.resume_dir",
    "runner.save_interval",
    "runner.seq_length",
    "runner.task_type",
    "runner.val_check_interval",
)
"""Keys that mean here what they mean in RLinf, as patterns: its own code reads them, or ours does."""

UNREAD = (
    "actor.num_gpus",
    "actor.num_steps",
    "algorithm.kl_beta",
    "algorithm.kl_penalty",
    "algorithm.loss_agg_func",
    "algorithm.ratio_clip_eps",
    "rollout.backend",
    "rollout.enforce_eager",
    "rollout.generation_backend",
    "rollout.gpu_memory_utilization",
    "rollout.sync_weight_nccl_max_ctas",
    "runner.eval_policy_path",
)
"""Keys of example configs that RLinf's embodied workers and runners do not read either."""

WITHOUT_EFFECT = {
    "actor.sync_weight_no_wait": "weights always travel while rollouts go on",
    "algorithm.advantage_mode": "only advantages of video models read it",
    "algorithm.dagger*": "DAgger alone reads it",
    "algorithm.on_policy_min_ratio": "a batch is what comes first within async.train.max_staleness",
    "algorithm.rollout_store_size_per_rank": "a batch has env.train.total_num_envs x rollout_epoch "
    "trajectories, each trained once",
    "algorithm.shuffle_rollout": "only runner.use_training_pipeline reads it",
    "rollout.recompute_logprobs": "async.train.proximal says how the proximal policy is found",
    "rollout.rlt_feature_model*": "RLT alone reads it",
    "rollout.rollout_queue_size": "only runner.enable_decoupled_mode reads it",
    "runner.expert_ckpt_path": "DAgger alone reads it",
    "runner.overlap_env_bootstrap": "shards reset by themselves while others work",
    "runner.per_worker_log": "metrics are logged once, not once more for every worker",
}
"""Keys that RLinf's loops read and ours do not, and why nothing is lost, or what is."""


def fate(key: str) -> Fate | None:
    """What becomes of a dotted key; None if nobody has decided."""
    if any(key == refusal.key or key.startswith(f"{refusal.key}.") for refusal in REFUSALS):
        return "refused"
    if key in OFFLOADS:
        return "changed"
    if key in (*(translation.key for translation in TRANSLATIONS), *(old for old, _, _ in MOVED)):
        return "translated"
    tables: tuple[tuple[Any, Fate], ...] = (
        (WITHOUT_EFFECT, "without effect"),
        (UNREAD, "unread"),
        (SERVED, "served"),
    )
    return next((name for table, name in tables if any(fnmatchcase(key, pattern) for pattern in table)), None)


def without_effect(cfg: Mapping[str, Any]) -> Iterator[str]:
    """A remark for each key that RLinf would act on and that does nothing here, if it is set."""
    present = {key: value for key, value in dotted(cfg).items() if value not in (None, False, 0, 0.0, {}, [])}
    for pattern, why in WITHOUT_EFFECT.items():
        for key in present:
            if fnmatchcase(key, pattern):
                yield f"{key}={present[key]} has no effect here: {why}"
