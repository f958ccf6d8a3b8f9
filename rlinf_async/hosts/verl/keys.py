"""The fate of each key of veRL's config here, and its allowed values.

veRL itself lists its keys: the file `_generated_ppo_trainer.yaml` of the installed release has every one with
its default. Our own keys (`vla`, `env`, `async`) and the fates of veRL's are rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from rlinf_async.core.config_keys import dotted, lookup, nearest
from rlinf_async.hosts.kit.keys import Key, Table, counterparts, rows, shortened
from rlinf_async.hosts.kit.kinds import Anything, Block, Flag, Listed, Names, Real, Text, Whole
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.verl.algorithms import AGGREGATION_MODES, ESTIMATOR_NAMES
from rlinf_async.hosts.verl.placement import PLACED_PROCESSES, PLACEMENT
from rlinf_async.hosts.verl.refusals import CORRECTION_REASON, NO_OFFLOAD_REASON, OFFLOAD_KEYS, REFUSED_KEYS
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, MODEL_SECTION, ROLLOUT_SECTION
from rlinf_async.hosts.verl.values import changes, defaults, kind_of_default

COUNT_KIND, INTERVAL_KIND, NOT_NEGATIVE, POSITIVE_NUMBER = Whole(1), Whole(-1), Real(least=0), Real(above=0)
SHARE_KIND = Real(least=0, most=1)
SEED_KIND = Whole(0, 2**32 - 1)
"""The seeds that numpy's generators take."""
DTYPE_KIND = Names(("fp32", "float32", "bf16", "bfloat16", "fp16", "float16"))


NUMBER_KEYS = (
    *rows(
        COUNT_KIND,
        "data.train_batch_size",
        "env.train.total_num_envs",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
        "trainer.total_training_steps",
        "vla.model.action_dim",
        "vla.model.num_action_chunks",
        f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu",
        f"{ACTOR_SECTION}.ppo_mini_batch_size",
        required=True,
    ),
    *rows(
        COUNT_KIND,
        "env.eval.max_episode_steps",
        "env.eval.max_steps_per_rollout_epoch",
        "env.eval.total_num_envs",
        "env.stages",
        "env.train.max_episode_steps",
        "env.train.max_steps_per_rollout_epoch",
        "env.workers",
        "ray_kwargs.ray_init.num_cpus",
        "trainer.max_actor_ckpt_to_keep",
        "vla.inference.ranks",
        f"{ACTOR_SECTION}.ppo_epochs",
        f"{MODEL_SECTION}.lora_alpha",
        f"{ROLLOUT_SECTION}.log_prob_micro_batch_size_per_gpu",
        f"{ROLLOUT_SECTION}.n",
        f"{ROLLOUT_SECTION}.n_gpus_per_node",
    ),
    *rows(Whole(0), f"{MODEL_SECTION}.lora_rank", f"{ROLLOUT_SECTION}.nnodes"),
    *rows(INTERVAL_KIND, f"{ACTOR_SECTION}.fsdp_config.fsdp_size"),
    *rows(INTERVAL_KIND, "trainer.save_freq", "trainer.test_freq", f"{ACTOR_SECTION}.optim.lr_warmup_steps"),
    *rows(SEED_KIND, f"{ACTOR_SECTION}.data_loader_seed", "env.train.seed", "env.eval.seed"),
    *rows(
        NOT_NEGATIVE,
        "critic.optim.lr",
        f"{ACTOR_SECTION}.clip_ratio_high",
        f"{ACTOR_SECTION}.entropy_coeff",
        f"{ACTOR_SECTION}.optim.lr",
        f"{ACTOR_SECTION}.optim.weight_decay",
        f"{ACTOR_SECTION}.policy_loss.ppo_kl_coef",
    ),
    *rows(
        POSITIVE_NUMBER,
        "critic.cliprange_value",
        f"{ACTOR_SECTION}.loss_scale_factor",
        f"{ACTOR_SECTION}.optim.clip_grad",
        f"{ACTOR_SECTION}.policy_loss.dro_beta",
        f"{ACTOR_SECTION}.tau_neg",
        f"{ACTOR_SECTION}.tau_pos",
    ),
    *rows(Listed(SHARE_KIND), f"{ACTOR_SECTION}.optim.betas"),
    *rows(
        SHARE_KIND,
        "algorithm.gamma",
        "algorithm.lam",
        f"{ACTOR_SECTION}.clip_ratio",
        f"{ACTOR_SECTION}.clip_ratio_low",
        f"{ACTOR_SECTION}.optim.lr_warmup_steps_ratio",
        f"{ACTOR_SECTION}.optim.min_lr_ratio",
        f"{ACTOR_SECTION}.policy_loss.clip_cov_ratio",
        f"{ACTOR_SECTION}.policy_loss.kl_cov_ratio",
    ),
    *rows(Real(above=1), f"{ACTOR_SECTION}.clip_ratio_c"),
    *rows(
        Real(),
        "env.eval.reward_scale",
        "env.train.reward_scale",
        f"{ACTOR_SECTION}.optim.num_cycles",
        f"{ACTOR_SECTION}.policy_loss.clip_cov_lb",
        f"{ACTOR_SECTION}.policy_loss.clip_cov_ub",
    ),
)
CHOICE_KEYS = (
    *rows(Names(("auto", "resume_path", "disable")), "trainer.resume_mode", required=True),
    *rows(Names(("token", "action", "chunk")), "vla.ratio_level"),
    *rows(Names(AGGREGATION_MODES), f"{ACTOR_SECTION}.loss_agg_mode"),
    *rows(
        Names(("constant", "cosine")),
        f"{ACTOR_SECTION}.optim.lr_scheduler_type",
        f"{ACTOR_SECTION}.optim.warmup_style",
    ),
    *rows(Names(("cpu", "cuda", "npu")), "trainer.device"),
    *rows(
        DTYPE_KIND,
        f"{ACTOR_SECTION}.fsdp_config.model_dtype",
        *(
            f"{ACTOR_SECTION}.fsdp_config.mixed_precision.{use}_dtype"
            for use in ("param", "reduce", "buffer")
        ),
    ),
    *rows(
        Flag(),
        "algorithm.norm_adv_by_std_in_grpo",
        "env.eval.auto_reset",
        "env.eval.ignore_terminations",
        "env.train.auto_reset",
        "env.train.ignore_terminations",
        "trainer.del_local_ckpt_after_load",
        "trainer.remove_previous_ckpt_in_save",
        "trainer.val_before_train",
        "vla.model.add_value_head",
        f"{ACTOR_SECTION}.checkpoint.strict",
        f"{ACTOR_SECTION}.optim.zero_indexed_step",
        f"{ACTOR_SECTION}.shuffle",
        f"{ACTOR_SECTION}.use_torch_compile",
    ),
    *rows(
        Text(),
        "env.eval.env_class",
        "env.eval.simulator_type",
        "env.train.env_class",
        "env.train.simulator_type",
        "trainer.checkpoint_callback_class",
        "trainer.default_hdfs_dir",
        "trainer.default_local_dir",
        "trainer.experiment_name",
        "trainer.project_name",
        "trainer.resume_from_path",
        "vla.ckpt_path",
        f"{ACTOR_SECTION}.optim.optimizer",
        f"{ACTOR_SECTION}.optim.optimizer_impl",
        f"{ACTOR_SECTION}.policy_loss.loss_mode",
    ),
    *rows(
        Text("a resource that nodes of Ray have"),
        *(f"{PLACEMENT}.{each}" for each in PLACED_PROCESSES),
    ),
    *rows(Text("the place of the run's records"), "vla.run_dir", required=True),
    *rows(Text(f"an estimator, such as {ESTIMATOR_NAMES[0]}"), "algorithm.adv_estimator", required=True),
    *rows(Text("an entry point of rlinf_async.models"), "vla.model.model_type", required=True),
    *rows(Listed(Text("the name of a logger")), "trainer.logger"),
    *rows(
        Listed(Text("the name of a layer")),
        f"{MODEL_SECTION}.exclude_modules",
        f"{MODEL_SECTION}.target_modules",
    ),
    *rows(
        Listed(Names(("model", "optimizer", "extra"))),
        f"{ACTOR_SECTION}.checkpoint.load_contents",
        f"{ACTOR_SECTION}.checkpoint.save_contents",
    ),
    *rows(Block(), "vla.model", "env.train", required=True),
    *rows(
        Block(),
        "env.eval",
        f"{ACTOR_SECTION}.fsdp_config",
        f"{ACTOR_SECTION}.fsdp_config.wrap_policy",
        f"{ACTOR_SECTION}.optim",
        f"{ACTOR_SECTION}.optim.override_optimizer_config",
    ),
)
CHANGED_KEYS = tuple(
    Key(name=name, kind=Flag(), fate="changed", why=NO_OFFLOAD_REASON) for name in OFFLOAD_KEYS
)
OPEN_KEYS = tuple(
    rows(
        Anything(),
        "async*",
        "env.eval.*",
        "env.train.*",
        "hydra*",
        "vla.model.*",
        "ray_kwargs*",
        "trainer.v1.trainer_mode",
        "transfer_queue*",
        f"{ACTOR_SECTION}.fsdp_config.*",
    )
)
"""Keys that are ours, or whose content is read elsewhere, whatever it is."""
FREE_KEYS = tuple(
    rows(
        Anything(),
        f"{ACTOR_SECTION}.fsdp_config.wrap_policy.*",
        f"{ACTOR_SECTION}.optim.override_optimizer_config.*",
    )
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
NO_TOKENS_REASON = "policies score their actions by themselves, and samples are not sequences of tokens"
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
        f"{ACTOR_SECTION}.ppo_max_token_len_per_gpu": "samples are decisions, not sequences of tokens",
        "data.*": NO_DATA_REASON,
        "critic.*": ONE_OPTIMIZER_REASON,
        f"{ROLLOUT_SECTION}.*": SAMPLING_REASON,
        "actor_rollout_ref.ref.*": NO_REFERENCE_REASON,
    }.items()
)
"""Keys of veRL that nothing reads here, and why nothing is lost, or what is."""
DERIVED_KEYS = tuple(
    rows(Anything(), f"{ROLLOUT_SECTION}.log_prob_*", f"{ROLLOUT_SECTION}.agent.*", "data.seed")
)
"""Keys that veRL's own check of a config asks for."""
TABLE = Table(
    (
        # Of rows of one name the first is taken, and so it is of patterns that fit: refusals go before kinds,
        # and the wide `.*` of INEFFECTIVE_KEYS last.
        *REFUSED_KEYS,
        *NUMBER_KEYS,
        *CHOICE_KEYS,
        *CHANGED_KEYS,
        *FREE_KEYS,
        *OPEN_KEYS,
        *DERIVED_KEYS,
        *INEFFECTIVE_KEYS,
    )
)
"""Every key that is ours, or that has a fate here."""

ENGINE_PREFIXES = ("actor_rollout_ref.", "trainer.")
"""The beginnings of keys that veRL's engine may read."""
CLASS_SUFFIX = "_target_"
"""The end of Hydra's keys that name a class, or anything else that can be called."""
OUR_SECTIONS = ("async", "defaults", "env", "hydra", "model_engine", "vla")
"""Sections that veRL's list of its keys has not; `model_engine` is veRL's own, from composing."""


def without_effect(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key that veRL acts on and that has no effect here, if it is not the default."""
    for key, value in changes(cfg):
        row = TABLE.find(key)
        if row is not None and row.fate == "without effect" and not row.allows(value):
            yield f"{key}={shortened(value)} has no effect: {row.why}"


def other_words(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key by which another framework says something else than a key here."""
    for key, value in dotted(cfg).items():
        names = [name for name in counterparts(key) if (row := TABLE.find(name)) and row.name == name]
        row = TABLE.find(key)
        if value is None or not names or (row is not None and row.name == key):
            continue
        if (counting := lookup(cfg, names[0])) != value:
            yield (
                f"{key}={shortened(value)} is read by the environment alone: "
                f"{names[0]}={shortened(counting)} counts"
            )


def without_fate(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key of veRL's that is undecided here, if it is not veRL's default."""
    for key, value in changes(cfg):
        if TABLE.find(key) is None and _is_known(key, defaults()):
            yield (
                f"{key}={shortened(value)}: nobody has looked at what becomes of this key under "
                "trainer_mode vla_async"
            )


def is_open(key: str) -> bool:
    """Return True if the table does not say of which kind the value of a key is."""
    row = TABLE.find(key)
    return row is None or (row.fate == "served" and isinstance(row.kind, Anything) and row not in FREE_KEYS)


def wrong_types(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the keys of veRL's engine without a kind here whose values are not of their default's kind."""
    for key, value in changes(cfg):
        if key.startswith(ENGINE_PREFIXES) and CLASS_SUFFIX in f"{key}={value}":
            # veRL's check calls whatever it names, and so would `explain`.
            yield Reason(
                f"{key}={shortened(value)} is not served: veRL's own classes are; remove it", f"~{key}"
            )
            continue
        kind = kind_of_default(key) if key.startswith(ENGINE_PREFIXES) and is_open(key) else None
        if kind is not None and (reason := Key(name=key, kind=kind).wrong(key, value)):
            yield reason


def unknown(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the keys in sections of veRL's, or of ours, that neither has, with the nearest that is there."""
    verl_keys = defaults()
    # Without veRL its keys are not known, and every one of them would seem to be a mistake.
    if not verl_keys:
        return
    names = [*dotted(verl_keys), *(row.name for row in TABLE.rows if not set("*?") & set(row.name))]
    for key, value in TABLE.unknown(cfg).items():
        section = key.partition(".")[0]
        if _is_known(key, verl_keys) or section not in {*verl_keys, "vla", "env"}:
            continue
        near = next((one for one in counterparts(key) if TABLE.find(one)), None) or nearest(
            key, [name for name in names if name.startswith(f"{section}.")], cutoff=0.8
        )
        hint = f"; did you mean {near}?" if near else "; remove it"
        yield Reason(f"neither veRL nor rlinf-async reads {key}={shortened(value)}{hint}", f"~{key}")


def unread_sections(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each section that no code reads."""
    # A package that prepares runs reads a section of the name of its entry point.
    sections = {*defaults(), *OUR_SECTIONS, *entry_points(group="rlinf_async.preparations").names}
    for section in cfg:
        if defaults() and section not in sections:
            near = nearest(section, sections)
            yield f"nobody reads the section {section}" + (f"; did you mean {near}?" if near else "")


def _is_known(key: str, tree: Mapping[str, Any]) -> bool:
    """Return True if a tree has a key, or says of a section around it only that it may hold anything."""
    *sections, name = key.split(".")
    for section in sections:
        if section not in tree:
            return False
        inner = tree[section]
        if not isinstance(inner, Mapping) or not inner:
            return True  # null, an empty block, or a pointer to another section
        tree = inner
    return name in tree
