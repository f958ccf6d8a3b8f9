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
from rlinf_async.hosts.judge.keys import Key, Table, rows, under
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
    Listed,
    Names,
    Real,
    Text,
    Whole,
)
from rlinf_async.hosts.verl.algorithms import AGGREGATION_MODES, ESTIMATOR_NAMES
from rlinf_async.hosts.verl.placement import PLACED_PROCESSES, PLACEMENT
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, MODEL_SECTION, ROLLOUT_SECTION
from rlinf_async.observe.plain_data import FAST_YAML_LOADER

DTYPE_KIND = Names(("fp32", "float32", "bf16", "bfloat16", "fp16", "float16"))


def _use(name: str, use: str, why: str, **more: Any) -> Key:
    return Key(name=name, fate="refused", remedy=f"use {use}: {why}", override=f"{name}={use}", **more)


def _false(name: str, why: str) -> Key:
    return _use(name, "false", why, kind=Flag())


def _null(name: str, why: str) -> Key:
    return _use(name, "null", why)


NO_TOKENS_REASON = "samples are decisions, not sequences of tokens"
ONE_MODEL_REASON = "a run has one model, the policy"
CORRECTION_REASON = "async.train.correction takes its place"

REFUSED_KEYS = (
    _use(
        "trainer.use_v1",
        "true",
        "only the V1 trainers come from a registry",
        kind=Flag(),
        serves=lambda value: value is True,
    ),
    _use(
        f"{ACTOR_SECTION}.strategy",
        "fsdp2",
        "policies are wrapped by FSDP2",
        serves=lambda value: value == "fsdp2",
    ),
    _false(f"{ACTOR_SECTION}.use_dynamic_bsz", NO_TOKENS_REASON),
    _null(f"{ACTOR_SECTION}.ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu takes its place"),
    _null(
        f"{ROLLOUT_SECTION}.log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu takes its place"
    ),
    _false(f"{MODEL_SECTION}.use_remove_padding", NO_TOKENS_REASON),
    _false(f"{MODEL_SECTION}.use_fused_kernels", NO_TOKENS_REASON),
    _use(
        f"{ACTOR_SECTION}.ulysses_sequence_parallel_size",
        "1",
        NO_TOKENS_REASON,
        kind=Whole(1),
        serves=lambda value: value in (None, 1),
    ),
    _false(f"{ACTOR_SECTION}.calculate_sum_pi_squared", NO_TOKENS_REASON),
    _use(
        f"{ACTOR_SECTION}.fsdp_config.ulysses_sequence_parallel_size",
        "1",
        NO_TOKENS_REASON,
        kind=Whole(1),
        serves=lambda value: value in (None, 1),
    ),
    _false(f"{ACTOR_SECTION}.fsdp_config.forward_only", "the learner trains"),
    _false(f"{ACTOR_SECTION}.qat.enable", "inference acts by the weights that are trained"),
    _false(f"{ACTOR_SECTION}.use_kl_loss", f"{ONE_MODEL_REASON}, and no reference"),
    _false("algorithm.use_kl_in_reward", f"{ONE_MODEL_REASON}, and no reference"),
    _false("distillation.enabled", f"{ONE_MODEL_REASON}, and no teacher"),
    _false("reward.reward_model.enable", "rewards come from the environments"),
    _use(
        "critic.enable",
        "false",
        "values come from the policy's value_head (vla.model.add_value_head=true)",
        kind=Flag(),
        serves=lambda value: value is False,
    ),
    _use("trainer.critic_warmup", "0", "policy and value_head take their steps together", kind=Whole(0)),
    _use(
        f"{MODEL_SECTION}.lora.rank",
        "0",
        f"FSDP2 has adapters by {MODEL_SECTION}.lora_rank",
        kind=Whole(),
        serves=lambda value: value is None or value <= 0,
    ),
    _null(f"{MODEL_SECTION}.lora_adapter_path", "adapters begin fresh; a checkpoint goes on with its own"),
    _null("algorithm.rollout_correction.rollout_is", CORRECTION_REASON),
    _null("algorithm.rollout_correction.rollout_rs", CORRECTION_REASON),
    _false("algorithm.rollout_correction.bypass_mode", CORRECTION_REASON),
    _false("algorithm.filter_groups.enable", "every group is trained"),
    _false("algorithm.use_pf_ppo", "every trajectory is trained as often as any other"),
    _use(
        f"{ACTOR_SECTION}.policy_loss.loss_mode",
        "vanilla",
        CORRECTION_REASON,
        serves=lambda value: value != "bypass_mode",
    ),
    _false(f"{ACTOR_SECTION}.checkpoint.async_save", "a checkpoint is there when its step ends"),
    _false("trainer.val_only", "a run trains; total_training_steps=1 with val_before_train evaluates first"),
    _null("global_profiler.steps", "rlinf-async trace takes its place"),
    _false("env.train.video_cfg.save_video", "no video is recorded"),
    _false("env.eval.video_cfg.save_video", "no video is recorded"),
)
SERVED_KEYS = (
    *rows(
        COUNT_KIND,
        """
        data.train_batch_size env.train.total_num_envs trainer.n_gpus_per_node trainer.nnodes
        trainer.total_training_steps vla.model.action_dim vla.model.num_action_chunks
        """,
        under(ACTOR_SECTION, "ppo_micro_batch_size_per_gpu ppo_mini_batch_size"),
        required=True,
    ),
    *rows(
        COUNT_KIND,
        """
        env.eval.max_episode_steps env.eval.max_steps_per_rollout_epoch env.eval.total_num_envs env.stages
        env.train.max_episode_steps env.train.max_steps_per_rollout_epoch env.workers
        ray_kwargs.ray_init.num_cpus trainer.max_actor_ckpt_to_keep vla.inference.ranks
        """,
        under(ACTOR_SECTION, "ppo_epochs"),
        under(MODEL_SECTION, "lora_alpha"),
        under(ROLLOUT_SECTION, "log_prob_micro_batch_size_per_gpu n n_gpus_per_node"),
    ),
    *rows(SIZE_KIND, f"{MODEL_SECTION}.lora_rank {ROLLOUT_SECTION}.nnodes"),
    # -1 is never, no division of ranks, and by the ratio of warm-up.
    *rows(
        INTERVAL_KIND,
        "trainer.save_freq trainer.test_freq",
        under(ACTOR_SECTION, "fsdp_config.fsdp_size optim.lr_warmup_steps"),
        null=-1,
    ),
    *rows(SEED_KIND, f"{ACTOR_SECTION}.data_loader_seed env.train.seed env.eval.seed"),
    *rows(
        NOT_NEGATIVE,
        "critic.optim.lr",
        under(
            ACTOR_SECTION,
            "clip_ratio_high entropy_coeff optim.lr optim.weight_decay policy_loss.ppo_kl_coef",
        ),
    ),
    *rows(
        POSITIVE_NUMBER,
        "critic.cliprange_value",
        under(ACTOR_SECTION, "loss_scale_factor optim.clip_grad policy_loss.dro_beta tau_neg tau_pos"),
    ),
    *rows(Listed(SHARE_KIND), f"{ACTOR_SECTION}.optim.betas"),
    *rows(
        SHARE_KIND,
        "algorithm.gamma algorithm.lam",
        under(
            ACTOR_SECTION,
            """
            clip_ratio clip_ratio_low optim.lr_warmup_steps_ratio optim.min_lr_ratio
            policy_loss.clip_cov_ratio policy_loss.kl_cov_ratio
            """,
        ),
    ),
    *rows(Real(above=1), f"{ACTOR_SECTION}.clip_ratio_c"),
    *rows(
        Real(),
        "env.eval.reward_scale env.train.reward_scale",
        under(ACTOR_SECTION, "optim.num_cycles policy_loss.clip_cov_lb policy_loss.clip_cov_ub"),
    ),
    *rows(Names(("auto", "resume_path", "disable")), "trainer.resume_mode", required=True),
    *rows(Names(("token", "action", "chunk")), "vla.ratio_level"),
    *rows(Names(AGGREGATION_MODES), f"{ACTOR_SECTION}.loss_agg_mode"),
    *rows(Names(("constant", "cosine")), under(ACTOR_SECTION, "optim.lr_scheduler_type optim.warmup_style")),
    *rows(Names(("cpu", "cuda", "npu")), "trainer.device"),
    *rows(
        DTYPE_KIND,
        under(
            f"{ACTOR_SECTION}.fsdp_config",
            """
            model_dtype mixed_precision.param_dtype mixed_precision.reduce_dtype
            mixed_precision.buffer_dtype
            """,
        ),
    ),
    *rows(
        Flag(),
        """
        algorithm.norm_adv_by_std_in_grpo env.eval.auto_reset env.eval.ignore_terminations
        env.train.auto_reset env.train.ignore_terminations trainer.del_local_ckpt_after_load
        trainer.remove_previous_ckpt_in_save trainer.val_before_train vla.model.add_value_head
        """,
        under(ACTOR_SECTION, "checkpoint.strict optim.zero_indexed_step shuffle use_torch_compile"),
    ),
    *rows(
        Text(),
        """
        env.eval.env_class env.eval.simulator_type env.train.env_class env.train.simulator_type
        trainer.checkpoint_callback_class trainer.default_hdfs_dir trainer.default_local_dir
        trainer.experiment_name trainer.project_name trainer.resume_from_path vla.ckpt_path
        """,
        under(ACTOR_SECTION, "optim.optimizer optim.optimizer_impl policy_loss.loss_mode"),
    ),
    *rows(Text("a resource that nodes of Ray have"), under(PLACEMENT, " ".join(PLACED_PROCESSES))),
    *rows(Text("the place of the run's records"), "vla.run_dir", required=True),
    *rows(Text(f"an estimator, such as {ESTIMATOR_NAMES[0]}"), "algorithm.adv_estimator", required=True),
    *rows(Text(f"an entry point of {MODELS_GROUP}"), "vla.model.model_type", required=True),
    *rows(Listed(Text("the name of a logger")), "trainer.logger"),
    *rows(Listed(Text("the name of a layer")), under(MODEL_SECTION, "exclude_modules target_modules")),
    *rows(
        Listed(Names(("model", "optimizer", "extra"))),
        under(f"{ACTOR_SECTION}.checkpoint", "load_contents save_contents"),
    ),
    *rows(Block(), "vla.model env.train", required=True),
    *rows(
        Block(),
        "env.eval",
        under(ACTOR_SECTION, "fsdp_config fsdp_config.wrap_policy optim optim.override_optimizer_config"),
    ),
)
CHANGED_KEYS = tuple(
    Key(
        name=f"{ACTOR_SECTION}.fsdp_config.{name}",
        kind=Flag(),
        fate="changed",
        why="the learner works while rollouts go on, and its weights stay where they are",
    )
    for name in ("param_offload", "optimizer_offload", "offload_policy")
)
OPEN_KEYS = tuple(
    rows(
        ANYTHING,
        "async* env.eval.* env.train.* hydra* vla.model.* ray_kwargs* trainer.v1.trainer_mode",
        f"transfer_queue* {ACTOR_SECTION}.fsdp_config.*",
    )
)
"""Keys that are ours, or whose content is read elsewhere, whatever it is."""
FREE_KEYS = tuple(
    rows(ANYTHING, under(ACTOR_SECTION, "fsdp_config.wrap_policy.* optim.override_optimizer_config.*"))
)
"""Blocks that veRL takes as they are."""

NO_DATA_REASON = "there is no data set: environments say where a trajectory starts"
NO_REFERENCE_REASON = "there is no reference policy"
SAMPLING_REASON = "policies sample their actions by themselves, as vla.model says"
ONE_OPTIMIZER_REASON = (
    "policy and value_head are trained together; critic.optim.lr and cliprange_value are read"
)
STALENESS_REASON = "async.train takes the place of samplers, and async.train.max_staleness bounds the age"
POLICY_REASON = "vla.model says what the policy is, vla.ckpt_path what it starts from"
REWARDS_REASON = "rewards come from the environments"
TRACE_REASON = "rlinf-async trace takes its place"
INEFFECTIVE_KEYS = tuple(
    Key(name=name, fate="without effect", why=why, serves=lambda value: value == "vla")
    for name, why in {
        "trainer.total_epochs": "there is no data set: trainer.total_training_steps counts",
        "trainer.balance_batch": "samples are decisions, which are all alike",
        "trainer.rollout_data_dir": "rollouts are not written down",
        "trainer.validation_data_dir": "evaluations are not written down",
        "trainer.log_val_generations": "evaluations are not written down",
        "trainer.v1.sampler.*": STALENESS_REASON,
        "trainer.v1.separate_async.*": STALENESS_REASON,
        "trainer.v1.colocate_async.*": STALENESS_REASON,
        "trainer.esi_redundant_time": "SIGTERM and SIGUSR1 save first",
        "trainer.max_critic_ckpt_to_keep": ONE_OPTIMIZER_REASON,
        "trainer.ray_wait_register_center_timeout": "learner ranks are not waited for by that way",
        f"{MODEL_SECTION}.*": POLICY_REASON,
        "custom_reward_function.*": REWARDS_REASON,
        "reward.*": REWARDS_REASON,
        "reward_model.*": REWARDS_REASON,
        "sandbox_fusion.*": REWARDS_REASON,
        "algorithm.rollout_correction.*": CORRECTION_REASON,
        "algorithm.filter_groups.*": "every group is trained",
        "algorithm.pf_ppo.*": "every trajectory is trained as often as any other",
        "distillation.*": "there is no teacher",
        "global_profiler.*": TRACE_REASON,
        f"{ACTOR_SECTION}.profiler.*": TRACE_REASON,
        "skip.*": "every rollout is collected",
        "actor_rollout_ref.hybrid_engine": "learner and inference are processes of their own",
        "actor_rollout_ref.nccl_timeout": "veRL's training worker does not read it",
        f"{ACTOR_SECTION}.freeze_vision_tower": "a policy freezes its own parameters",
        f"{ACTOR_SECTION}.grad_clip": f"veRL reads {ACTOR_SECTION}.optim.clip_grad",
        f"{ACTOR_SECTION}.use_prefix_grouper": NO_TOKENS_REASON,
        **{
            f"{ACTOR_SECTION}.{place}{name}": NO_TOKENS_REASON
            for place in ("", "fsdp_config.")
            for name in (
                "entropy_checkpointing",
                "entropy_from_logits_chunk_size",
                "entropy_from_logits_with_chunking",
                "pad_to_length",
                "pad_to_length_bucket",
            )
        },
        f"{ACTOR_SECTION}.fsdp_config.use_orig_params": "it is for FSDP1",
        "algorithm.kl_ctrl.*": NO_REFERENCE_REASON,
        "algorithm.kl_penalty": NO_REFERENCE_REASON,
        f"{ACTOR_SECTION}.kl_loss_coef": NO_REFERENCE_REASON,
        f"{ACTOR_SECTION}.kl_loss_type": NO_REFERENCE_REASON,
        f"{ACTOR_SECTION}.ppo_max_token_len_per_gpu": NO_TOKENS_REASON,
        "data.*": NO_DATA_REASON,
        "critic.*": ONE_OPTIMIZER_REASON,
        f"{ROLLOUT_SECTION}.*": SAMPLING_REASON,
        "actor_rollout_ref.ref.*": NO_REFERENCE_REASON,
    }.items()
)
"""Keys of veRL that nothing reads here, and why nothing is lost, or what is."""
DERIVED_KEYS = tuple(
    rows(ANYTHING, f"{ROLLOUT_SECTION}.log_prob_*", f"{ROLLOUT_SECTION}.agent.*", "data.seed")
)
"""Keys that veRL's own check of a config asks for."""
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
        *FREE_KEYS,
        *OPEN_KEYS,
        *DERIVED_KEYS,
        *INEFFECTIVE_KEYS,
    ),
    default_of=default_of,
    is_whole=True,
)
"""Every key that is ours, or that has a fate here."""
