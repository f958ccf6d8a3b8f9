"""The fate of each key of veRL's config here, and its allowed values.

veRL itself lists its keys: the file `_generated_ppo_trainer.yaml` of the installed release has every one with
its default. Our own keys (`vla`, `env`, `async`) and the fates of veRL's are rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from rlinf_async.core.names import nearest
from rlinf_async.core.nested import dotted, lookup
from rlinf_async.hosts.kit.keys import Key, Table, rows, shortened
from rlinf_async.hosts.kit.kinds import Anything, Block, Flag, Listed, Names, Real, Text, Whole
from rlinf_async.hosts.kit.synonyms import counterparts
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.verl.estimators import ESTIMATOR_NAMES as ESTIMATORS
from rlinf_async.hosts.verl.placement import COMPONENTS
from rlinf_async.hosts.verl.placement import KEY as PLACEMENT
from rlinf_async.hosts.verl.policy_losses import AGGREGATION_MODES
from rlinf_async.hosts.verl.refusals import ACTOR, CORRECTION, MODEL, OFFLOAD_KEYS, REFUSALS, ROLLOUT, STAYS
from rlinf_async.hosts.verl.values import changes, defaults, kind_of_default

COUNT, EVERY, NOT_NEGATIVE, POSITIVE = Whole(1), Whole(-1), Real(least=0), Real(above=0)
SHARE = Real(least=0, most=1)
SEED = Whole(0, 2**32 - 1)
"""The seeds that numpy's generators take."""
DTYPE = Names(("fp32", "float32", "bf16", "bfloat16", "fp16", "float16"))


NUMBERS = (
    *rows(
        COUNT,
        "data.train_batch_size",
        "env.train.total_num_envs",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
        "trainer.total_training_steps",
        "vla.model.action_dim",
        "vla.model.num_action_chunks",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{ACTOR}.ppo_mini_batch_size",
        required=True,
    ),
    *rows(
        COUNT,
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
        f"{ACTOR}.ppo_epochs",
        f"{MODEL}.lora_alpha",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        f"{ROLLOUT}.n",
        f"{ROLLOUT}.n_gpus_per_node",
    ),
    *rows(Whole(0), f"{MODEL}.lora_rank", f"{ROLLOUT}.nnodes"),
    *rows(EVERY, f"{ACTOR}.fsdp_config.fsdp_size"),
    *rows(EVERY, "trainer.save_freq", "trainer.test_freq", f"{ACTOR}.optim.lr_warmup_steps"),
    *rows(SEED, f"{ACTOR}.data_loader_seed", "env.train.seed", "env.eval.seed"),
    *rows(
        NOT_NEGATIVE,
        "critic.optim.lr",
        f"{ACTOR}.clip_ratio_high",
        f"{ACTOR}.entropy_coeff",
        f"{ACTOR}.optim.lr",
        f"{ACTOR}.optim.weight_decay",
        f"{ACTOR}.policy_loss.ppo_kl_coef",
    ),
    *rows(
        POSITIVE,
        "critic.cliprange_value",
        f"{ACTOR}.loss_scale_factor",
        f"{ACTOR}.optim.clip_grad",
        f"{ACTOR}.policy_loss.dro_beta",
        f"{ACTOR}.tau_neg",
        f"{ACTOR}.tau_pos",
    ),
    *rows(Listed(SHARE), f"{ACTOR}.optim.betas"),
    *rows(
        SHARE,
        "algorithm.gamma",
        "algorithm.lam",
        f"{ACTOR}.clip_ratio",
        f"{ACTOR}.clip_ratio_low",
        f"{ACTOR}.optim.lr_warmup_steps_ratio",
        f"{ACTOR}.optim.min_lr_ratio",
        f"{ACTOR}.policy_loss.clip_cov_ratio",
        f"{ACTOR}.policy_loss.kl_cov_ratio",
    ),
    *rows(Real(above=1), f"{ACTOR}.clip_ratio_c"),
    *rows(
        Real(),
        "env.eval.reward_scale",
        "env.train.reward_scale",
        f"{ACTOR}.optim.num_cycles",
        f"{ACTOR}.policy_loss.clip_cov_lb",
        f"{ACTOR}.policy_loss.clip_cov_ub",
    ),
)
CHOICES = (
    *rows(Names(("auto", "resume_path", "disable")), "trainer.resume_mode", required=True),
    *rows(Names(("token", "action", "chunk")), "vla.ratio_level"),
    *rows(Names(AGGREGATION_MODES), f"{ACTOR}.loss_agg_mode"),
    *rows(Names(("constant", "cosine")), f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.warmup_style"),
    *rows(Names(("cpu", "cuda", "npu")), "trainer.device"),
    *rows(
        DTYPE,
        f"{ACTOR}.fsdp_config.model_dtype",
        *(f"{ACTOR}.fsdp_config.mixed_precision.{what}_dtype" for what in ("param", "reduce", "buffer")),
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
        f"{ACTOR}.checkpoint.strict",
        f"{ACTOR}.optim.zero_indexed_step",
        f"{ACTOR}.shuffle",
        f"{ACTOR}.use_torch_compile",
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
        f"{ACTOR}.optim.optimizer",
        f"{ACTOR}.optim.optimizer_impl",
        f"{ACTOR}.policy_loss.loss_mode",
    ),
    *rows(Text("a resource that nodes of Ray have"), *(f"{PLACEMENT}.{each}" for each in COMPONENTS)),
    *rows(Text("the place of the run's records"), "vla.run_dir", required=True),
    *rows(Text(f"an estimator, such as {ESTIMATORS[0]}"), "algorithm.adv_estimator", required=True),
    *rows(Text("an entry point of rlinf_async.models"), "vla.model.model_type", required=True),
    *rows(Listed(Text("the name of a logger")), "trainer.logger"),
    *rows(Listed(Text("the name of a layer")), f"{MODEL}.exclude_modules", f"{MODEL}.target_modules"),
    *rows(
        Listed(Names(("model", "optimizer", "extra"))),
        f"{ACTOR}.checkpoint.load_contents",
        f"{ACTOR}.checkpoint.save_contents",
    ),
    *rows(Block(), "vla.model", "env.train", required=True),
    *rows(
        Block(),
        "env.eval",
        f"{ACTOR}.fsdp_config",
        f"{ACTOR}.fsdp_config.wrap_policy",
        f"{ACTOR}.optim",
        f"{ACTOR}.optim.override_optimizer_config",
    ),
)
CHANGED = tuple(Key(name=name, kind=Flag(), fate="changed", why=STAYS) for name in OFFLOAD_KEYS)
OURS = tuple(
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
        f"{ACTOR}.fsdp_config.*",
    )
)
"""Keys that are ours, or whose content is read elsewhere, whatever it is."""
FREE = tuple(
    rows(Anything(), f"{ACTOR}.fsdp_config.wrap_policy.*", f"{ACTOR}.optim.override_optimizer_config.*")
)
"""Blocks that veRL takes as they are."""

DATA = "there is no data set: environments say where a trajectory starts"
NO_REFERENCE = "there is no reference policy"
SAMPLED = "policies sample their actions by themselves, as vla.model says"
ONE_OPTIMIZER = "policy and value_head are trained together; critic.optim.lr and cliprange_value are read"
STALENESS = "async.train takes the place of samplers, and async.train.max_staleness bounds the age"
POLICY = "vla.model says what the policy is, vla.ckpt_path what it starts from"
FROM_ENVIRONMENTS = "rewards come from the environments"
TRACED = "rlinf-async trace takes its place"
TOKENS_APART = "policies score their actions by themselves, and samples are not sequences of tokens"
WITHOUT_EFFECT = tuple(
    Key(name=name, fate="without effect", why=why, serves=lambda value: value == "vla")
    for name, why in {
        "trainer.total_epochs": "there is no data set: trainer.total_training_steps counts",
        "trainer.balance_batch": "samples are decisions, which are all alike",
        "trainer.rollout_data_dir": "rollouts are not written down",
        "trainer.validation_data_dir": "evaluations are not written down",
        "trainer.log_val_generations": "evaluations are not written down",
        "trainer.v1.sampler.*": STALENESS,
        "trainer.v1.separate_async.*": STALENESS,
        "trainer.v1.colocate_async.*": STALENESS,
        "trainer.esi_redundant_time": "SIGTERM and SIGUSR1 save first",
        "trainer.max_critic_ckpt_to_keep": ONE_OPTIMIZER,
        "trainer.ray_wait_register_center_timeout": "learner ranks are not waited for by that way",
        f"{MODEL}.*": POLICY,
        "custom_reward_function.*": FROM_ENVIRONMENTS,
        "reward.*": FROM_ENVIRONMENTS,
        "reward_model.*": FROM_ENVIRONMENTS,
        "sandbox_fusion.*": FROM_ENVIRONMENTS,
        "algorithm.rollout_correction.*": CORRECTION,
        "algorithm.filter_groups.*": "every group is trained",
        "algorithm.pf_ppo.*": "every trajectory is trained as often as any other",
        "distillation.*": "there is no teacher",
        "global_profiler.*": TRACED,
        f"{ACTOR}.profiler.*": TRACED,
        "skip.*": "every rollout is collected",
        "actor_rollout_ref.hybrid_engine": "learner and inference are processes of their own",
        "actor_rollout_ref.nccl_timeout": "veRL's training worker does not read it",
        f"{ACTOR}.freeze_vision_tower": "a policy freezes its own parameters",
        f"{ACTOR}.grad_clip": f"veRL reads {ACTOR}.optim.clip_grad",
        f"{ACTOR}.use_prefix_grouper": TOKENS_APART,
        **{
            f"{ACTOR}.{place}{name}": TOKENS_APART
            for place in ("", "fsdp_config.")
            for name in (
                "entropy_checkpointing",
                "entropy_from_logits_chunk_size",
                "entropy_from_logits_with_chunking",
                "pad_to_length",
                "pad_to_length_bucket",
            )
        },
        f"{ACTOR}.fsdp_config.use_orig_params": "it is for FSDP1",
        "algorithm.kl_ctrl.*": NO_REFERENCE,
        "algorithm.kl_penalty": NO_REFERENCE,
        f"{ACTOR}.kl_loss_coef": NO_REFERENCE,
        f"{ACTOR}.kl_loss_type": NO_REFERENCE,
        f"{ACTOR}.ppo_max_token_len_per_gpu": "samples are decisions, not sequences of tokens",
        "data.*": DATA,
        "critic.*": ONE_OPTIMIZER,
        f"{ROLLOUT}.*": SAMPLED,
        "actor_rollout_ref.ref.*": NO_REFERENCE,
    }.items()
)
"""Keys of veRL that nothing reads here, and why nothing is lost, or what is."""
DERIVED = tuple(rows(Anything(), f"{ROLLOUT}.log_prob_*", f"{ROLLOUT}.agent.*", "data.seed"))
"""Keys that veRL's own check of a config asks for."""
TABLE = Table((*REFUSALS, *NUMBERS, *CHOICES, *CHANGED, *FREE, *OURS, *DERIVED, *WITHOUT_EFFECT))
"""Every key that is ours, or that has a fate here."""

ENGINE = ("actor_rollout_ref.", "trainer.")
"""How keys begin that veRL's engine may read."""
TARGET = "_target_"
"""How Hydra's keys end that name a class, or anything else that can be called."""
OUR_SECTIONS = ("async", "defaults", "env", "hydra", "model_engine", "vla")
"""Sections that veRL's list of its keys has not; `model_engine` is veRL's own, from composing."""


def without_effect(cfg: Mapping[str, Any]) -> Iterator[str]:
    """A remark for each key that veRL acts on and that does nothing here, if it is not veRL's default."""
    for key, value in changes(cfg):
        row = TABLE.find(key)
        if row is not None and row.fate == "without effect" and not row.allows(value):
            yield f"{key}={shortened(value)} has no effect: {row.why}"


def other_words(cfg: Mapping[str, Any]) -> Iterator[str]:
    """A remark for each key by which another framework says what a key here says otherwise."""
    for key, value in dotted(cfg).items():
        ours = [name for name in counterparts(key) if (row := TABLE.find(name)) and row.name == name]
        row = TABLE.find(key)
        if value is None or not ours or (row is not None and row.name == key):
            continue
        if (here := lookup(cfg, ours[0])) != value:
            yield (
                f"{key}={shortened(value)} is read by the environment alone: {ours[0]}={shortened(here)} "
                "counts"
            )


def undecided(cfg: Mapping[str, Any]) -> Iterator[str]:
    """A remark for each key of veRL's that nobody here has decided on, if it is not veRL's default."""
    for key, value in changes(cfg):
        if TABLE.find(key) is None and _is_known(key, defaults()):
            yield (
                f"{key}={shortened(value)}: nobody has looked at what becomes of this key under "
                "trainer_mode vla_async"
            )


def is_open(key: str) -> bool:
    """Whether the table does not say what the value of a key may be."""
    row = TABLE.find(key)
    return row is None or (row.fate == "served" and isinstance(row.kind, Anything) and row not in FREE)


def mistyped(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """The keys of veRL's engine that the table has no kind for, whose values are none of their default's."""
    for key, value in changes(cfg):
        if key.startswith(ENGINE) and TARGET in f"{key}={value}":
            # veRL's check calls whatever it names, and so would `explain`.
            yield Reason(
                f"{key}={shortened(value)} is not served: veRL's own classes are; remove it", f"~{key}"
            )
            continue
        kind = kind_of_default(key) if key.startswith(ENGINE) and is_open(key) else None
        if kind is not None and (reason := Key(name=key, kind=kind).wrong(key, value)):
            yield reason


def unknown(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """The keys in sections of veRL's, or of ours, that neither of us has, with the nearest that is there."""
    known = defaults()
    if not known:
        return
    names = [*dotted(known), *(row.name for row in TABLE.rows if not set("*?") & set(row.name))]
    for key, value in TABLE.unknown(cfg).items():
        section = key.partition(".")[0]
        if _is_known(key, known) or section not in {*known, "vla", "env"}:
            continue
        near = next((one for one in counterparts(key) if TABLE.find(one)), None) or nearest(
            key, [name for name in names if name.startswith(f"{section}.")], cutoff=0.8
        )
        hint = f"; did you mean {near}?" if near else "; remove it"
        yield Reason(f"neither veRL nor rlinf-async reads {key}={shortened(value)}{hint}", f"~{key}")


def unread_sections(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each section that no code reads."""
    known = {*defaults(), *OUR_SECTIONS}
    known |= entry_points(group="rlinf_async.preparations").names
    for section in cfg:
        if defaults() and section not in known:
            near = nearest(section, known)
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
