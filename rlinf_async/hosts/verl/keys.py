"""The fate of each key of veRL's config here, and its allowed values.

veRL itself lists its keys: the file `_generated_ppo_trainer.yaml` of the installed release has every one with
its default. Our own keys (`vla`, `env`, `async`) and the fates of veRL's are rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.core.config_keys import dotted, lookup
from rlinf_async.entry_points import MODELS_GROUP
from rlinf_async.hosts.async_block import MISSING_VALUE
from rlinf_async.hosts.judge.keys import Key, Table
from rlinf_async.hosts.judge.kinds import FLAG
from rlinf_async.hosts.judge.rows import refused, rows, without_effect
from rlinf_async.hosts.verl.algorithms import AGGREGATION_MODES, ESTIMATOR_NAMES
from rlinf_async.hosts.verl.placement import PLACED_PROCESSES, PLACEMENT
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, MODEL_SECTION, ROLLOUT_SECTION
from rlinf_async.observe.plain_data import FAST_YAML_LOADER

NO_TOKENS_REASON = "samples are decisions, not sequences of tokens"
CORRECTION_REASON = "async.train.correction takes its place"
REFUSED_SETTINGS = f"""
trainer.use_v1=true: only the V1 trainers come from a registry
{ACTOR_SECTION}.strategy=fsdp2: policies are wrapped by FSDP2
{ACTOR_SECTION}.use_dynamic_bsz=false: {NO_TOKENS_REASON}
{ACTOR_SECTION}.ppo_micro_batch_size=null: ppo_micro_batch_size_per_gpu takes its place
{ROLLOUT_SECTION}.log_prob_micro_batch_size=null: log_prob_micro_batch_size_per_gpu takes its place
{MODEL_SECTION}.use_remove_padding=false: {NO_TOKENS_REASON}
{MODEL_SECTION}.use_fused_kernels=false: {NO_TOKENS_REASON}
{ACTOR_SECTION}.ulysses_sequence_parallel_size=1: {NO_TOKENS_REASON}
{ACTOR_SECTION}.calculate_sum_pi_squared=false: {NO_TOKENS_REASON}
{ACTOR_SECTION}.fsdp_config.ulysses_sequence_parallel_size=1: {NO_TOKENS_REASON}
{ACTOR_SECTION}.fsdp_config.forward_only=false: the learner trains
{ACTOR_SECTION}.qat.enable=false: inference acts by the weights that are trained
{ACTOR_SECTION}.use_kl_loss=false: a run has one model, the policy, and no reference
algorithm.use_kl_in_reward=false: a run has one model, the policy, and no reference
distillation.enabled=false: a run has one model, the policy, and no teacher
reward.reward_model.enable=false: rewards come from the environments
critic.enable=false: values come from the policy's value_head (vla.model.add_value_head=true)
trainer.critic_warmup=0: policy and value_head take their steps together
{MODEL_SECTION}.lora.rank=0: FSDP2 has adapters by {MODEL_SECTION}.lora_rank
{MODEL_SECTION}.lora_adapter_path=null: adapters begin fresh; a checkpoint goes on with its own
algorithm.rollout_correction.rollout_is=null: {CORRECTION_REASON}
algorithm.rollout_correction.rollout_rs=null: {CORRECTION_REASON}
algorithm.rollout_correction.bypass_mode=false: {CORRECTION_REASON}
algorithm.filter_groups.enable=false: every group is trained
algorithm.use_pf_ppo=false: every trajectory is trained as often as any other
{ACTOR_SECTION}.policy_loss.loss_mode=vanilla: {CORRECTION_REASON}
{ACTOR_SECTION}.checkpoint.async_save=false: a checkpoint is there when its step ends
trainer.val_only=false: a run trains; total_training_steps=1 with val_before_train evaluates first
global_profiler.steps=null: rlinf-async trace takes its place
env.train.video_cfg.save_video=false: no video is recorded
env.eval.video_cfg.save_video=false: no video is recorded
"""
REFUSED_KEYS = tuple(
    refused(
        REFUSED_SETTINGS,
        {
            "trainer.use_v1": {"serves": lambda value: value is True},
            "critic.enable": {"serves": lambda value: value is False},
            f"{ACTOR_SECTION}.strategy": {"serves": lambda value: value == "fsdp2"},
            f"{ACTOR_SECTION}.policy_loss.loss_mode": {"serves": lambda value: value != "bypass_mode"},
            f"{MODEL_SECTION}.lora.rank": {"serves": lambda value: value is None or value <= 0},
        },
    )
)
SERVED_KEYS = rows(f"""
a whole number of at least 1 (needed)
    data.train_batch_size env.train.total_num_envs trainer.n_gpus_per_node trainer.nnodes
    trainer.total_training_steps vla.model.action_dim vla.model.num_action_chunks
    {ACTOR_SECTION}: ppo_micro_batch_size_per_gpu ppo_mini_batch_size
a whole number of at least 1
    env.eval.max_episode_steps env.eval.max_steps_per_rollout_epoch env.eval.total_num_envs env.stages
    env.train.max_episode_steps env.train.max_steps_per_rollout_epoch env.workers
    ray_kwargs.ray_init.num_cpus trainer.max_actor_ckpt_to_keep vla.inference.ranks
    {ACTOR_SECTION}: ppo_epochs
    {MODEL_SECTION}: lora_alpha
    {ROLLOUT_SECTION}: log_prob_micro_batch_size_per_gpu n n_gpus_per_node
a whole number of at least 0
    {MODEL_SECTION}: lora_rank
    {ROLLOUT_SECTION}: nnodes
a whole number of at least -1 (null is -1)
    trainer.save_freq trainer.test_freq
    {ACTOR_SECTION}: fsdp_config.fsdp_size optim.lr_warmup_steps
a whole number from 0 to 4294967295
    env.train.seed env.eval.seed
    {ACTOR_SECTION}: data_loader_seed
a finite number of at least 0
    critic.optim.lr
    {ACTOR_SECTION}: clip_ratio_high entropy_coeff optim.lr optim.weight_decay policy_loss.ppo_kl_coef
a finite number above 0
    critic.cliprange_value
    {ACTOR_SECTION}: loss_scale_factor optim.clip_grad policy_loss.dro_beta tau_neg tau_pos
a number from 0 to 1, or a list of them
    {ACTOR_SECTION}: optim.betas
a number from 0 to 1
    algorithm.gamma algorithm.lam
    {ACTOR_SECTION}: clip_ratio clip_ratio_low optim.lr_warmup_steps_ratio optim.min_lr_ratio
    {ACTOR_SECTION}: policy_loss.clip_cov_ratio policy_loss.kl_cov_ratio
a finite number above 1
    {ACTOR_SECTION}: clip_ratio_c
a finite number
    env.eval.reward_scale env.train.reward_scale
one of auto, resume_path, disable (needed)
    trainer.resume_mode
one of token, action, chunk
    vla.ratio_level
one of {", ".join(AGGREGATION_MODES)}
    {ACTOR_SECTION}: loss_agg_mode
one of constant, cosine
    {ACTOR_SECTION}: optim.lr_scheduler_type optim.warmup_style
one of cpu, cuda, npu
    trainer.device
one of fp32, float32, bf16, bfloat16, fp16, float16
    {ACTOR_SECTION}: fsdp_config.model_dtype fsdp_config.mixed_precision.param_dtype
    {ACTOR_SECTION}: fsdp_config.mixed_precision.reduce_dtype fsdp_config.mixed_precision.buffer_dtype
true or false
    env.eval.auto_reset env.eval.ignore_terminations env.train.auto_reset env.train.ignore_terminations
    trainer.remove_previous_ckpt_in_save vla.model.add_value_head
a text
    env.eval.env_class env.eval.simulator_type env.train.env_class env.train.simulator_type
    trainer.checkpoint_callback_class trainer.default_hdfs_dir trainer.resume_from_path vla.ckpt_path
a resource that nodes of Ray have
    {PLACEMENT}: {" ".join(PLACED_PROCESSES)}
the place of the run's records (needed)
    vla.run_dir
an estimator, such as {ESTIMATOR_NAMES[0]} (needed)
    algorithm.adv_estimator
an entry point of {MODELS_GROUP} (needed)
    vla.model.model_type
the name of a logger, or a list of them
    trainer.logger
the name of a layer, or a list of them
    {MODEL_SECTION}: exclude_modules target_modules
one of model, optimizer, extra, or a list of them
    {ACTOR_SECTION}: checkpoint.load_contents checkpoint.save_contents
a block of keys (needed)
    vla.model env.train
a block of keys
    env.eval
    {ACTOR_SECTION}: optim.override_optimizer_config
""")
CHANGED_KEYS = tuple(
    Key(
        name=f"{ACTOR_SECTION}.fsdp_config.{name}",
        kind=FLAG,
        fate="changed",
        why="the learner works while rollouts go on, and its weights stay where they are",
    )
    for name in ("param_offload", "optimizer_offload", "offload_policy")
)
OPEN_KEYS = rows(f"""
anything at all
    ray_kwargs* transfer_queue*
    {ACTOR_SECTION}: fsdp_config.wrap_policy.* optim.override_optimizer_config.*
anything
    async* env.eval.* env.train.* hydra* vla.model.* trainer.v1.trainer_mode
    algorithm.norm_adv_by_std_in_grpo data.seed
    trainer: default_local_dir del_local_ckpt_after_load experiment_name project_name val_before_train
    {ACTOR_SECTION}: checkpoint.strict fsdp_config.* shuffle use_torch_compile
    {ACTOR_SECTION}.optim: num_cycles optimizer optimizer_impl zero_indexed_step
    {ACTOR_SECTION}.policy_loss: clip_cov_lb clip_cov_ub
    {ROLLOUT_SECTION}: log_prob_* agent.*
""")
"""Keys that are ours, whose content is read elsewhere, or of which veRL's default tells the kind."""

TOKEN_KEYS = """
    entropy_checkpointing entropy_from_logits_chunk_size entropy_from_logits_with_chunking pad_to_length
    pad_to_length_bucket
""".strip().replace("\n", " ")
INEFFECTIVE_KEYS = without_effect(
    f"""
there is no data set: trainer.total_training_steps counts
    trainer.total_epochs
there is no data set: environments say where a trajectory starts
    data.*
samples are decisions, which are all alike
    trainer.balance_batch
rollouts are not written down
    trainer.rollout_data_dir
evaluations are not written down
    trainer.validation_data_dir trainer.log_val_generations
async.train takes the place of samplers, and async.train.max_staleness bounds the age
    trainer.v1: sampler.* separate_async.* colocate_async.*
SIGTERM and SIGUSR1 save first
    trainer.esi_redundant_time
policy and value_head are trained together; critic.optim.lr and cliprange_value are read
    trainer.max_critic_ckpt_to_keep critic.*
learner ranks are not waited for by that way
    trainer.ray_wait_register_center_timeout
vla.model says what the policy is, vla.ckpt_path what it starts from
    {MODEL_SECTION}.*
rewards come from the environments
    custom_reward_function.* reward.* reward_model.* sandbox_fusion.*
{CORRECTION_REASON}
    algorithm.rollout_correction.*
every group is trained
    algorithm.filter_groups.*
every trajectory is trained as often as any other
    algorithm.pf_ppo.*
there is no teacher
    distillation.*
rlinf-async trace takes its place
    global_profiler.* {ACTOR_SECTION}.profiler.*
every rollout is collected
    skip.*
learner and inference are processes of their own
    actor_rollout_ref.hybrid_engine
veRL's training worker does not read it
    actor_rollout_ref.nccl_timeout
a policy freezes its own parameters
    {ACTOR_SECTION}.freeze_vision_tower
veRL reads {ACTOR_SECTION}.optim.clip_grad
    {ACTOR_SECTION}.grad_clip
{NO_TOKENS_REASON}
    {ACTOR_SECTION}: use_prefix_grouper ppo_max_token_len_per_gpu {TOKEN_KEYS}
    {ACTOR_SECTION}.fsdp_config: {TOKEN_KEYS}
it is for FSDP1
    {ACTOR_SECTION}.fsdp_config.use_orig_params
there is no reference policy
    algorithm.kl_ctrl.* algorithm.kl_penalty actor_rollout_ref.ref.*
    {ACTOR_SECTION}: kl_loss_coef kl_loss_type
policies sample their actions by themselves, as vla.model says
    {ROLLOUT_SECTION}.*
""",
    serves=lambda value: value == "vla",
)
"""Keys of veRL that nothing reads here, and why nothing is lost, or what is."""
DEFAULT_POINTER = re.compile(r"\$\{(?:oc\.select:)?(?P<key>[\w.]+)\s*(?:,\s*(?P<fallback>.*))?\}", re.DOTALL)
"""A default of veRL's that points to another key, with the value that it has where that key is absent."""
PART_POINTER = re.compile(r"\$\{[\w.]+\}")
"""A pointer within a longer text."""


@cache
def defaults() -> Mapping[str, Any]:
    """veRL's own config with its defaults; empty where veRL is not here. veRL is not imported."""
    verl = find_spec("verl")
    for folder in (verl.submodule_search_locations or ()) if verl else ():
        path = Path(folder, "trainer", "config", "_generated_ppo_trainer.yaml")
        if path.is_file():
            content: Mapping[str, Any] = yaml.load(path.read_text(), Loader=FAST_YAML_LOADER)
            return content
    return {}


@cache
def resolved_defaults() -> Mapping[str, Any]:
    """veRL's defaults by dotted keys, of which some point to others, where nobody sets anything."""
    return dotted(_resolved())


@cache
def _resolved() -> Mapping[str, Any]:
    tree: Mapping[str, Any] = resolve(defaults(), defaults())
    return tree


def default_of(key: str) -> Any:
    """Return veRL's default of a dotted key, or of a section; None where it is null, or there is none."""
    return lookup(_resolved(), key)


def resolve(tree: Any, cfg: Mapping[str, Any], section: str = "") -> Any:
    """Return a tree of defaults that stands at `section`, with the values in `cfg` that it points to."""
    if isinstance(tree, Mapping):
        return {name: resolve(value, cfg, f"{section}.{name}") for name, value in tree.items()}
    if not isinstance(tree, str) or "${" not in tree:
        return tree
    if pointer := DEFAULT_POINTER.fullmatch(tree):
        return _pointed_to(pointer, cfg, section)
    return PART_POINTER.sub(lambda part: str(resolve(part[0], cfg, section)), tree)


def _pointed_to(pointer: re.Match[str], cfg: Mapping[str, Any], place: str) -> Any:
    key, fallback = pointer["key"], pointer["fallback"]
    if key.startswith("."):  # a key of the same section
        key = f"{place.rpartition('.')[0]}{key}".lstrip(".")
    section, _, name = key.rpartition(".")
    around = lookup(cfg, section) if section else cfg
    # `???` stands for no value, as it does to OmegaConf.
    if isinstance(around, Mapping) and around.get(name, MISSING_VALUE) != MISSING_VALUE:
        return resolve(around[name], cfg, f".{key}")
    if fallback and "${" in fallback:
        return resolve(fallback, cfg, place)
    return yaml.load(fallback, Loader=FAST_YAML_LOADER) if fallback else None


TABLE = Table(
    (
        # Of rows of one name the first is taken, and so it is of patterns that fit: refusals go before kinds,
        # and the wide `.*` of INEFFECTIVE_KEYS last.
        *REFUSED_KEYS,
        *SERVED_KEYS,
        *CHANGED_KEYS,
        *OPEN_KEYS,
        *INEFFECTIVE_KEYS,
    ),
    default_of=default_of,
    is_whole=True,
)
"""Every key that is ours, or that has a fate here."""
