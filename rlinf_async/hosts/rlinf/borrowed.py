"""Every name of RLinf that this package uses, the modules that define it in each version, and its use here.

Our modules import them from this module, which finds them in the installed RLinf. Before Ray starts, each is
looked up in RLinf's sources, with the attributes and methods that our subclasses need; see `tree`. A test
compares the list with our classes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.hosts.rlinf.imports import light_imports


@dataclass(frozen=True)
class BorrowedName:
    """A class or a function of RLinf."""

    use: str
    """The feature of this package that uses the name."""
    places: tuple[str, ...]
    """The definitions in RLinf's versions, newest first, as `module:name`."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Methods and attributes of the class that our classes call, read, set or override, each with its use."""
    optional: bool = False
    """True if this package also works with RLinf's versions without the name."""


OBSERVED_FIELDS = ("main_images", "wrist_images", "extra_view_images", "states", "task_descriptions")
"""Fields of an observation that RLinf's env workers and ours pass on."""

SHARDS, EVALUATION, RESTARTS = "environment shards", "evaluation", "restarts of processes"
ANSWERS, STEPS, TURNS = "answers of inference", "training steps", "turns on an accelerator"
WEIGHTS, CHECKPOINTS, DEVICES = "publication of weights", "checkpoints", "devices"
LAUNCH, CHOICE, METRICS, MODELS = "starting workers", "the choice of classes", "metrics", "models"
CONFIG, ADVANTAGES, LOSSES = "reading a config", "advantages", "losses"
REWARDS = "rewards of reward models"

OF_EVERY_WORKER = {"cfg": CONFIG, "_rank": LAUNCH, "init_worker": LAUNCH}

BORROWED_NAMES: dict[str, BorrowedName] = {
    "Worker": BorrowedName(
        CHOICE,
        ("rlinf.scheduler.worker.worker:Worker",),
        {
            "create_group": CHOICE,
            "_load_user_extensions": "loading this package in workers",
            "torch_platform": DEVICES,
            "torch_device_type": DEVICES,
        },
    ),
    "EnvWorker": BorrowedName(
        SHARDS,
        ("rlinf.workers.env.env_worker:EnvWorker",),
        {
            **OF_EVERY_WORKER,
            "broadcast": RESTARTS,
            "stage_num": SHARDS,
            "_setup_env_and_wrappers": SHARDS,
            "_init_env": SHARDS,
            "env_list": SHARDS,
            "env_interact_step": SHARDS,
            "model_cfg": SHARDS,
            "interact": SHARDS,
            "eval_env_list": EVALUATION,
            "env_evaluate_step": EVALUATION,
            "eval_prev_done": EVALUATION,
        },
    ),
    "MultiStepRolloutWorker": BorrowedName(
        ANSWERS,
        ("rlinf.workers.rollout.hf.huggingface_worker:MultiStepRolloutWorker",),
        {
            **OF_EVERY_WORKER,
            "device": DEVICES,
            "hf_model": ANSWERS,
            "predict": ANSWERS,
            "version": WEIGHTS,
            "set_global_step": WEIGHTS,
        },
    ),
    "EmbodiedFSDPActor": BorrowedName(
        STEPS,
        (
            # The first is of main, the second of 0.3.
            "rlinf.workers.actor.embodied_fsdp_actor_worker:EmbodiedFSDPActor",
            "rlinf.workers.actor.fsdp_actor_worker:EmbodiedFSDPActor",
        ),
        {
            **OF_EVERY_WORKER,
            "device": DEVICES,
            "model": STEPS,
            "lr_scheduler": STEPS,
            "amp_context": STEPS,
            "train_micro_batch": STEPS,
            "optimizer_step": STEPS,
            "rollout_batch": STEPS,
            "run_training": STEPS,
            "_process_received_rollout_batch": STEPS,
            "compute_advantages_and_returns": ADVANTAGES,
            "version": WEIGHTS,
            "set_global_step": WEIGHTS,
            "get_rollout_state_dict": WEIGHTS,
            "param_names_need_sync": WEIGHTS,
            "store_requires_grad_param_name": WEIGHTS,
            "load_param_and_grad": TURNS,
            "load_optimizer": TURNS,
            "offload_param_and_grad": TURNS,
            "offload_optimizer": TURNS,
            "save_checkpoint": CHECKPOINTS,
            "load_checkpoint": CHECKPOINTS,
            "critic_warmup_steps": CHECKPOINTS,
            "optimizer_steps": CHECKPOINTS,
            "optimizer": CHECKPOINTS,
            "build_optimizer": CHECKPOINTS,
            "build_lr_scheduler": CHECKPOINTS,
            "grad_scaler": CHECKPOINTS,
        },
    ),
    "EmbodiedNFTFSDPPolicy": BorrowedName(
        "NFT",
        ("rlinf.workers.actor.fsdp_nft_policy_worker:EmbodiedNFTFSDPPolicy",),
        {
            "_recompute_v_old": "NFT",
            "_get_current_nft_tau": "NFT",
            "init_rollout_model": CHECKPOINTS,
            "rollout_model_state_dict": CHECKPOINTS,
        },
        optional=True,
    ),
    "EmbodiedRewardWorker": BorrowedName(
        REWARDS, ("rlinf.workers.reward.reward_worker:EmbodiedRewardWorker",), {"init_worker": REWARDS}
    ),
    "EmbodiedAPIRewardWorker": BorrowedName(
        REWARDS, ("rlinf.workers.reward.api_reward_worker:EmbodiedAPIRewardWorker",), optional=True
    ),
    "HistoryManager": BorrowedName(
        REWARDS,
        (
            "rlinf.utils.env_helpers.history_manager:HistoryManager",
            "rlinf.workers.env.history_manager:HistoryManager",
        ),
        {"append_to_history_entries": REWARDS, "build_history_input": REWARDS},
    ),
    "EmbodiedRunner": BorrowedName(CHOICE, ("rlinf.runners.embodied_runner:EmbodiedRunner",)),
    "WorkerGroup": BorrowedName(
        LAUNCH,
        ("rlinf.scheduler.worker.worker_group:WorkerGroup",),
        {"launch": LAUNCH, "worker_info_list": LAUNCH, "worker_cls_name": LAUNCH},
    ),
    "Cluster": BorrowedName(
        LAUNCH,
        ("rlinf.scheduler.cluster.cluster:Cluster",),
        {
            "__init__": "the check before Ray",
            "allocate": RESTARTS,
            "get_node_group": RESTARTS,
            "get_node_info": RESTARTS,
        },
    ),
    "ClusterConfig": BorrowedName(
        CONFIG, ("rlinf.scheduler.cluster.config:ClusterConfig",), {"from_dict_cfg": CONFIG}
    ),
    "HybridComponentPlacement": BorrowedName(
        LAUNCH, ("rlinf.utils.placement:HybridComponentPlacement",), {"get_strategy": LAUNCH}
    ),
    "MetricLogger": BorrowedName(
        METRICS,
        ("rlinf.utils.metric_logger:MetricLogger",),
        {"log": METRICS, "finish": METRICS, "supported_logger": METRICS, "_all_loggers": METRICS},
    ),
    "EnvOutput": BorrowedName(
        "what policies are shown",
        ("rlinf.data.schema.embodied_types:EnvOutput", "rlinf.data.embodied_io_struct:EnvOutput"),
    ),
    "validate_cfg": BorrowedName(CONFIG, ("rlinf.config:validate_cfg",)),
    "SupportedModel": BorrowedName(MODELS, ("rlinf.config:SupportedModel",)),
    "register_model": BorrowedName(MODELS, ("rlinf.models:register_model",)),
    "SupportedEnvType": BorrowedName(CONFIG, ("rlinf.envs:SupportedEnvType",)),
    "get_env_cls": BorrowedName("environments of entry points", ("rlinf.envs:get_env_cls",)),
    "calculate_adv_and_returns": BorrowedName(
        ADVANTAGES, ("rlinf.algorithms.registry:calculate_adv_and_returns",)
    ),
    "get_adv_and_returns": BorrowedName(ADVANTAGES, ("rlinf.algorithms.registry:get_adv_and_returns",)),
    "register_advantage": BorrowedName(ADVANTAGES, ("rlinf.algorithms.registry:register_advantage",)),
    "get_policy_loss": BorrowedName(LOSSES, ("rlinf.algorithms.registry:get_policy_loss",)),
    "register_policy_loss": BorrowedName(LOSSES, ("rlinf.algorithms.registry:register_policy_loss",)),
    "compute_opd_actor_loss": BorrowedName(
        LOSSES, ("rlinf.algorithms.losses:compute_opd_actor_loss",), optional=True
    ),
    "all_reduce_dict": BorrowedName(METRICS, ("rlinf.utils.distributed:all_reduce_dict",)),
    "compute_rollout_metrics": BorrowedName(METRICS, ("rlinf.utils.metric_utils:compute_rollout_metrics",)),
    "check_progress": BorrowedName("when to evaluate and save", ("rlinf.utils.runner_utils:check_progress",)),
    "mlp_policy": BorrowedName(
        "the memory of a policy", ("rlinf.models.embodiment.mlp_policy:get_model",), optional=True
    ),
    "reshape_entropy": BorrowedName(LOSSES, ("rlinf.utils.utils:reshape_entropy",), optional=True),
    **{
        name: BorrowedName(METRICS, (f"rlinf.utils.metric_utils:{name}",), optional=True)
        for name in (
            "pop_critic_explained_variance_stats",
            "compute_critic_explained_variance_from_stats",
            "CRITIC_EXPLAINED_VARIANCE_KEY",
        )
    },
    "PipelineEmbodiedFSDPActor": BorrowedName(
        "RLinf's own pipeline",
        ("rlinf.workers.actor.fsdp_actor_worker_pipeline:PipelineEmbodiedFSDPActor",),
        optional=True,
    ),
}


def is_here(name: str) -> bool:
    """Return True if the installed RLinf defines `name`."""
    return _definition(name) is not _MISSING


_MISSING = object()


def _definition(name: str) -> Any:
    """Return the definition of `name` in the installed RLinf, or `_MISSING`."""
    for place in BORROWED_NAMES[name].places:
        module, _, attribute = place.partition(":")
        if (found := getattr(_module(module), attribute, _MISSING)) is not _MISSING:
            return found
    return _MISSING


def _module(name: str) -> Any:
    """Return a module of RLinf; None if this RLinf has none of that name."""
    if name not in sys.modules:
        try:
            with light_imports():
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Else a package that the module needs is missing.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            return None
    return sys.modules[name]


def __getattr__(name: str) -> Any:
    if name not in BORROWED_NAMES:
        raise AttributeError(name)
    if (found := _definition(name)) is _MISSING:
        importlib.import_module("rlinf")  # raises the error that names RLinf, where it is not installed
        raise ImportError(
            f"this RLinf has no {name} (for {BORROWED_NAMES[name].use}): use another version of it"
        )
    return found
