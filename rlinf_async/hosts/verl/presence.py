"""Checks that the names in a config exist: veRL finds out in its processes, after Ray has started.

veRL's own names are known without importing it, which takes seconds. veRL is asked where a name is none of
them, as a package of the user's may have registered it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from omegaconf import DictConfig

from rlinf_async.core.nested import lookup
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.kit.models import unbuildable
from rlinf_async.hosts.presence import (
    absent_files,
    absent_loggers,
    is_here,
    unknown_env_classes,
    unknown_loggers,
    unwritable,
)
from rlinf_async.hosts.reasons import Reason, unknown
from rlinf_async.hosts.verl import estimators, policy_losses
from rlinf_async.hosts.verl.checkpoint import misnamed
from rlinf_async.hosts.verl.config import read
from rlinf_async.hosts.verl.own_checks import is_for_verl_to_judge, registered, validate
from rlinf_async.hosts.verl.settings import VerlSettings

LOGGER_NAMES = (
    "clearml",
    "console",
    "file",
    "mlflow",
    "rl_insight",
    "swanlab",
    "tensorboard",
    "trackio",
    "tracking",
    "vemlp_wandb",
    "wandb",
)
LOGGER_PACKAGES = ("wandb", "swanlab", "mlflow", "clearml", "trackio")
"""Loggers of veRL that are packages of their own, by the same name."""
ESTIMATOR_KEY = "algorithm.adv_estimator"
LOSS_KEY = "actor_rollout_ref.actor.policy_loss.loss_mode"
LOGGER_KEY = "trainer.logger"
RUN_DIR = "vla.run_dir"
CHECKPOINTS = "trainer.default_local_dir"
FILE_KEYS = ("vla.ckpt_path",)
OPTIM = "actor_rollout_ref.actor.optim"
USUAL_OPTIMIZER = ("AdamW", "torch.optim")


def absent(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the names in `cfg` (plain data) that neither veRL, nor an entry point, nor this machine has."""
    yield from unknown_env_classes(cfg)
    models = sorted(entry_points(group="rlinf_async.models").names)
    if (name := lookup(cfg, "vla.model.model_type")) not in models:
        yield unknown("vla.model.model_type", name, models, "an entry point of rlinf_async.models")
    if (name := str(lookup(cfg, ESTIMATOR_KEY))) not in estimators.ESTIMATOR_NAMES:
        registry = registered().ADV_ESTIMATOR_REGISTRY
        names = sorted(str(getattr(each, "value", each)) for each in registry)
        if name not in names:
            yield unknown(ESTIMATOR_KEY, name, names, "an estimator of veRL")
    if (name := lookup(cfg, LOSS_KEY)) is not None and name not in policy_losses.LOSS_NAMES:
        losses = sorted(registered().POLICY_LOSS_REGISTRY)
        if name not in losses:
            yield unknown(LOSS_KEY, name, losses, "a policy loss of veRL")
    if isinstance(model := lookup(cfg, "vla.model"), Mapping):
        yield from unbuildable(model, key="vla.model")
    if lookup(cfg, "actor_rollout_ref.model.lora_rank") and not is_here("peft"):
        yield Reason("actor_rollout_ref.model.lora_rank needs the package peft; install it: pip install peft")
    yield from _optimizer(cfg)
    yield from unknown_loggers(LOGGER_KEY, lookup(cfg, LOGGER_KEY), LOGGER_NAMES, what="a logger of veRL")
    yield from absent_loggers(LOGGER_KEY, lookup(cfg, LOGGER_KEY), LOGGER_PACKAGES, instead="console")
    if lookup(cfg, "trainer.nnodes") == 1:  # other nodes have files of their own
        yield from absent_files(cfg, FILE_KEYS)
        yield from unwritable(str(lookup(cfg, RUN_DIR)), key=RUN_DIR)
        if (lookup(cfg, "trainer.save_freq") or -1) != -1:
            yield from unwritable(str(lookup(cfg, CHECKPOINTS)), key=CHECKPOINTS)
        yield from _checkpoint(cfg)


def _optimizer(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """That veRL would not find the optimizer; its package is imported, if it is not the usual one."""
    name, package = (lookup(cfg, f"{OPTIM}.{key}") for key in ("optimizer", "optimizer_impl"))
    if not (isinstance(name, str) and isinstance(package, str)) or (name, package) == USUAL_OPTIMIZER:
        return
    try:
        module = import_module(package)
    except (ImportError, TypeError, ValueError) as error:  # an empty or a relative name
        yield Reason(f"{OPTIM}.optimizer_impl={package} cannot be imported: {error}")
        return
    if not hasattr(module, name):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        yield unknown(f"{OPTIM}.optimizer", name, classes, f"an optimizer of {package}")


def _checkpoint(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """That there is nothing to go on from where `trainer.resume_from_path` says."""
    if lookup(cfg, "trainer.resume_mode") != "resume_path":
        return
    if why := misnamed(lookup(cfg, "trainer.resume_from_path")):
        yield Reason(why, "trainer.resume_mode=disable")


def checked(config: DictConfig) -> VerlSettings:
    """The settings of a run that can begin on this machine.

    Raises:
        RefusedError: all that stands in the way.
        ValueError: as of `config.read`, and of veRL's own checks.
    """
    cfg = plain(config)
    settings = read(config, beside=list(absent(cfg)))
    if is_for_verl_to_judge(cfg):
        validate(config)
    return settings
