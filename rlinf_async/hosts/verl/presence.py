"""Checks that the names in a config exist: veRL itself finds out in its processes, after Ray has started.

veRL's own names are known here without importing veRL, which takes seconds. veRL is imported only if it alone
can tell: for names that a user's package may have registered with it, for keys that it checks and our table
does not, and before a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rlinf_async.core.config_keys import dotted, lookup
from rlinf_async.entry_points import MODELS_GROUP, names_of
from rlinf_async.hosts.judge.kinds import UNSTATED_KIND
from rlinf_async.hosts.judge.presence import (
    directory_reasons,
    environment_reasons,
    file_reasons,
    is_here,
    logger_package_reasons,
    logger_reasons,
    model_reasons,
    own_check,
)
from rlinf_async.hosts.judge.reasons import Reason, refuse, unknown
from rlinf_async.hosts.verl.algorithms import ESTIMATOR_NAMES, LOSS_NAMES
from rlinf_async.hosts.verl.checkpoint import why_no_checkpoint
from rlinf_async.hosts.verl.config import read
from rlinf_async.hosts.verl.installation import get_ready
from rlinf_async.hosts.verl.keys import TABLE, filled_in, usual
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, VerlSettings

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
"""Loggers of veRL that need the package of the same name."""
ESTIMATOR_KEY = "algorithm.adv_estimator"
LOSS_KEY = f"{ACTOR_SECTION}.policy_loss.loss_mode"
LOGGER_KEY = "trainer.logger"
RUN_DIR_KEY = "vla.run_dir"
CHECKPOINTS_KEY = "trainer.default_local_dir"
FILE_KEYS = ("vla.ckpt_path",)
OPTIM_SECTION = f"{ACTOR_SECTION}.optim"
USUAL_OPTIMIZER = ("AdamW", "torch.optim")
JUDGED_PREFIXES = (
    f"{ACTOR_SECTION}.",
    "actor_rollout_ref.rollout.log_prob_",
    "actor_rollout_ref.rollout.val_kwargs.",
)
"""The beginnings of keys that veRL's own check of a config reads."""


def presence_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the names in `cfg` (plain data) that neither veRL, nor an entry point, nor this machine has."""
    yield from environment_reasons(cfg)
    models = names_of(MODELS_GROUP)
    if (name := lookup(cfg, "vla.model.model_type")) not in models:
        yield unknown("vla.model.model_type", name, models, f"an entry point of {MODELS_GROUP}")
    if (name := str(lookup(cfg, ESTIMATOR_KEY))) not in ESTIMATOR_NAMES:
        registry = _algorithms_of_verl().ADV_ESTIMATOR_REGISTRY
        names = sorted(str(getattr(each, "value", each)) for each in registry)
        if name not in names:
            yield unknown(ESTIMATOR_KEY, name, names, "an estimator of veRL")
    if (name := lookup(cfg, LOSS_KEY)) is not None and name not in LOSS_NAMES:
        losses = sorted(_algorithms_of_verl().POLICY_LOSS_REGISTRY)
        if name not in losses:
            yield unknown(LOSS_KEY, name, losses, "a policy loss of veRL")
    if isinstance(model := lookup(cfg, "vla.model"), Mapping):
        yield from model_reasons(model, key="vla.model")
    if lookup(cfg, "actor_rollout_ref.model.lora_rank") and not is_here("peft"):
        yield Reason("actor_rollout_ref.model.lora_rank needs the package peft; install it: pip install peft")
    yield from _optimizer(cfg)
    yield from logger_reasons(
        LOGGER_KEY, lookup(cfg, LOGGER_KEY), LOGGER_NAMES, description="a logger of veRL"
    )
    yield from logger_package_reasons(LOGGER_KEY, lookup(cfg, LOGGER_KEY), LOGGER_PACKAGES, instead="console")
    if lookup(cfg, "trainer.nnodes") == 1:  # other nodes have files of their own
        yield from file_reasons(cfg, FILE_KEYS)
        yield from directory_reasons(str(lookup(cfg, RUN_DIR_KEY)), key=RUN_DIR_KEY)
        if (lookup(cfg, "trainer.save_freq") or -1) != -1:
            yield from directory_reasons(str(lookup(cfg, CHECKPOINTS_KEY)), key=CHECKPOINTS_KEY)
        yield from _checkpoint(cfg)


def _optimizer(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if veRL would not find the optimizer; an unusual package is imported."""
    name, package = (lookup(cfg, f"{OPTIM_SECTION}.{key}") for key in ("optimizer", "optimizer_impl"))
    if not (isinstance(name, str) and isinstance(package, str)) or (name, package) == USUAL_OPTIMIZER:
        return
    try:
        module = import_module(package)
    except (ImportError, TypeError, ValueError) as error:  # an empty or a relative name
        yield Reason(f"{OPTIM_SECTION}.optimizer_impl={package} cannot be imported: {error}")
        return
    if not hasattr(module, name):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        yield unknown(f"{OPTIM_SECTION}.optimizer", name, classes, f"an optimizer of {package}")


def _checkpoint(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if `trainer.resume_from_path` names no checkpoint."""
    if lookup(cfg, "trainer.resume_mode") != "resume_path":
        return
    if why := why_no_checkpoint(lookup(cfg, "trainer.resume_from_path")):
        yield Reason(why, "trainer.resume_mode=disable")


def _algorithms_of_verl() -> Any:
    """Return the module with veRL's registries of estimators and losses."""
    get_ready()
    import verl.trainer.ppo.core_algos

    return verl.trainer.ppo.core_algos


def is_for_verl_to_judge(cfg: Mapping[str, Any]) -> bool:
    """Return True if `cfg` (plain data) sets a key that veRL checks and our table has no kind for.

    A bool need not be checked: if the default of its key is a bool, both values are served.
    """
    defaults = usual(cfg)
    return any(
        key.startswith(JUDGED_PREFIXES) and value != defaults.get(key) and not isinstance(value, bool)
        for key, value in dotted(cfg).items()
        if (row := TABLE.find(key)) is None or (row.kind is UNSTATED_KIND and row.fate != "refused")
    )


def validate(cfg: DictConfig) -> None:
    """Make veRL's own checks of its keys.

    Raises:
        ValueError: one of them fails.
    """
    get_ready()
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    with own_check("veRL", HydraException):
        reference, critic = need_reference_policy(cfg), need_critic(cfg)
        validate_config(config=cfg, use_reference_policy=reference, use_critic=critic)


def runnable_settings(cfg: Mapping[str, Any]) -> VerlSettings:
    """Return the settings of a run of `cfg` (plain data) that can begin on this machine.

    Raises:
        RefusedError: the config cannot run; has all reasons.
        ValueError: as of `config.read`, and of veRL's own checks.
    """
    refuse(TABLE.block_reasons(cfg))
    cfg = filled_in(cfg)
    settings = read(cfg, more_reasons=list(presence_reasons(cfg)))
    if is_for_verl_to_judge(cfg):
        validate(OmegaConf.create(dict(cfg)))
    return settings
