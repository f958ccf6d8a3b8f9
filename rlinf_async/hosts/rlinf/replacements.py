"""Chooses the class of this package that replaces a class of RLinf or a user's subclass of one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rlinf_async.entry_points import find, load_class, provided
from rlinf_async.hosts.rlinf.losses import NFT_LOSS
from rlinf_async.hosts.rlinf.own_engine import (
    APPLY_METHOD,
    POLICY_ATTRIBUTE,
    SYNC_METHOD,
    acts_elsewhere,
    unserved,
)
from rlinf_async.hosts.rlinf.tree import dotted_name

WORKERS_GROUP = "rlinf_async.workers"

ROLE_OF_CLASS = {
    "rlinf.workers.env.env_worker.EnvWorker": "env",
    "rlinf.workers.env.async_env_worker.AsyncEnvWorker": "env",
    "rlinf.workers.rollout.hf.huggingface_worker.MultiStepRolloutWorker": "rollout",
    "rlinf.workers.rollout.hf.async_huggingface_worker.AsyncMultiStepRolloutWorker": "rollout",
    "rlinf.workers.actor.fsdp_actor_worker.EmbodiedFSDPActor": "actor",
    "rlinf.workers.actor.embodied_fsdp_actor_worker.EmbodiedFSDPActor": "actor",
    "rlinf.workers.actor.async_ppo_fsdp_worker.AsyncPPOEmbodiedFSDPActor": "actor",
}
"""Worker classes of RLinf's synchronous and asynchronous scripts, and the names of our entry points for
them."""

LEARNER_OF_CLASS = {
    "rlinf.workers.actor.fsdp_nft_policy_worker.EmbodiedNFTFSDPPolicy": (
        "rlinf_async.hosts.rlinf.nft_worker",
        "NFTActorWorker",
    )
}
"""RLinf's subclasses of its actor for other losses: (module, name) of our class before each. It extends our
actor."""

STOCK_CLASSES = ("rlinf.workers.reward.reward_worker.EmbodiedRewardWorker",)
"""RLinf's classes that run unchanged in our runs, as do their subclasses."""

RUNNER_CLASSES = (
    "rlinf.runners.embodied_runner.EmbodiedRunner",
    "rlinf.runners.async_ppo_embodied_runner.AsyncPPOEmbodiedRunner",
)

BYPASSED_METHODS = {
    "env": (
        "interact",
        "_run_interact_once",
        "evaluate",
        "bootstrap_step",
        "finish_rollout",
        "record_env_metrics",
        "store_last_obs_and_intervened_info",
        "send_rollout_trajectories",
        "get_reward_model_output",
        "assign_history_reward",
        "compute_bootstrap_rewards",
        "_maybe_wait_env_delay",
    ),
    "rollout": (
        "generate",
        "generate_one_epoch",
        "evaluate",
        "_predict_rollout_actions",
        "offload_model",
        "reload_model",
    ),
    "actor": ("recv_rollout_trajectories", "sync_model_to_rollout", "finish_global_batch"),
}
"""Methods of RLinf's loops that ours never call, so that overrides of them in a subclass would have no
effect."""


def dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def replacement(cls: type) -> type:
    """Return the class that runs instead of the worker class `cls` in a run with a level on.

    A user's subclass of one of RLinf's workers keeps its additions: our class is put before it in the method
    resolution order. A package can provide its own class by an entry point of `rlinf_async.workers` with the
    dotted name of `cls`.

    Raises:
        ValueError: `cls` is not a known worker, or it overrides a method that our loops do not call.
    """
    if dotted(cls) in provided(WORKERS_GROUP).names:
        return load_class(WORKERS_GROUP, dotted(cls))
    if any(dotted(base) in STOCK_CLASSES for base in cls.__mro__):
        return cls
    base_class = next((base for base in cls.__mro__ if dotted(base) in ROLE_OF_CLASS), None)
    if base_class is None:
        raise ValueError(
            f"async is on, and {dotted(cls)} is no worker that rlinf-async can make asynchronous: it extends "
            f"none of {', '.join(ROLE_OF_CLASS)}. Provide a class by an entry point {WORKERS_GROUP}: "
            f"{dotted(cls)}, or use "
            "async.mode=off"
        )
    role = ROLE_OF_CLASS[dotted(base_class)]
    replacement_class = _learner(cls) or load_class(WORKERS_GROUP, role)
    return replacement_class if cls is base_class else _before(replacement_class, cls, base_class, role)


def _learner(cls: type) -> Any:
    """Return our class for the loss of an actor class of RLinf, or None if it is the class of every loss."""
    places = (LEARNER_OF_CLASS.get(dotted(base)) for base in cls.__mro__)
    place = next(filter(None, places), None)
    return None if place is None else getattr(import_module(place[0]), place[1])


def _before(replacement: Any, users: type, base: type, role: str) -> type:
    """Return a class with ours before the user's, so that ours extends the user's overrides."""
    # All classes before RLinf's: overrides in a mixin would be lost as well.
    own = users.__mro__[: users.__mro__.index(base)]
    lost_methods = sorted({name for cls in own for name in BYPASSED_METHODS[role] if name in vars(cls)})
    if lost_methods:
        raise ValueError(
            f"async is on, and {dotted(users)} overrides {', '.join(lost_methods)} of RLinf's "
            f"{base.__name__}, which the asynchronous loops do not call. Provide a subclass of rlinf-async's "
            f"worker by an entry point {WORKERS_GROUP}: {dotted(users)}, or use async.mode=off"
        )
    attributes: dict[str, Any] = {"__module__": users.__module__}
    if role == "rollout":
        _check_engine(users, own)
        if hasattr(users, APPLY_METHOD):
            # Our class has a method of this name, which would hide the user's.
            attributes["users_apply_weights"] = getattr(users, APPLY_METHOD)
        attributes["acts_elsewhere"] = acts_elsewhere(own)
    return type(replacement)(f"Async{users.__name__}", (replacement, users), attributes)


def _check_engine(users: type, own: Sequence[type]) -> None:
    """Check that a rollout worker with an inference engine other than RLinf's `hf_model` takes new weights.

    Raises:
        ValueError: it would keep the weights that it started with.
    """
    if lost := unserved(own):
        raise ValueError(
            f"async is on, and {dotted(users)} overrides {', '.join(lost)}, so that it would not act by the "
            f"weights that the run gives to {POLICY_ATTRIBUTE}. Give it a method {APPLY_METHOD}"
            "(state_dict, version), which is called with every version, or "
            f"{SYNC_METHOD}, or use async.mode=off"
        )


def check_entry_points() -> None:
    """Check a package's rollout worker that replaces ours, before any process is started.

    Raises:
        ValueError: it would keep the weights that it started with.
    """
    ours = "rlinf_async.hosts.rlinf.rollout_worker.BatchingRolloutWorker"
    users = load_class(WORKERS_GROUP, "rollout")
    own = [cls for cls in users.__mro__ if dotted(cls) != ours]
    names = [dotted(cls) for cls in users.__mro__]
    _check_engine(users, own[: names.index(ours)] if ours in names else [])


def runner_replacement(cls: type) -> type:
    """Return the runner that replaces `cls`.

    Raises:
        ValueError: `cls` is a user's runner; its own loop would not run.
    """
    runner = load_class("rlinf_async.runners", "embodied")
    if issubclass(cls, runner):
        return cls
    if dotted(cls) not in RUNNER_CLASSES:
        raise ValueError(
            f"async is on, and {dotted(cls)} is a runner that rlinf-async does not know: its loop would "
            "not run. Provide a subclass of rlinf-async's runner by an entry point "
            "rlinf_async.runners: embodied, or use async.mode=off"
        )
    return runner


def replacements(loss: object = None) -> dict[str, str]:
    """Return {class name in the installed RLinf: our class that runs instead}, for runs with `loss`."""
    classes = {
        dotted_name(name): find(WORKERS_GROUP, ROLE_OF_CLASS[dotted_name(name)]).value
        for name in ("EnvWorker", "MultiStepRolloutWorker", "EmbodiedFSDPActor")
    }
    if loss == NFT_LOSS:
        del classes[dotted_name("EmbodiedFSDPActor")]
        classes |= {theirs: ":".join(ours) for theirs, ours in LEARNER_OF_CLASS.items()}
    return {**classes, RUNNER_CLASSES[0]: find("rlinf_async.runners", "embodied").value}
