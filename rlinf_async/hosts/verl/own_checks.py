"""What veRL itself says of a config, for which it has to be imported: seconds.

So it is asked where only it can tell: of names that a package of the user's may have registered with it, of
keys that it checks and our table has no kind for, and before a run.
"""

from __future__ import annotations

import io
import logging
import os
import traceback
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig

from rlinf_async.hosts.verl.block import PLATFORM_VARIABLE
from rlinf_async.hosts.verl.keys import is_open
from rlinf_async.hosts.verl.refusals import ACTOR
from rlinf_async.hosts.verl.values import changes, is_switch

JUDGED = (f"{ACTOR}.", "actor_rollout_ref.rollout.log_prob_", "actor_rollout_ref.rollout.val_kwargs.")
"""How keys begin that veRL's own check of a config looks at."""


PLATFORM_LOGGER = "verl.plugin.platform.platform_manager"


def is_worth_reading(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO


def get_ready() -> bool:
    """Prepare this process for importing veRL, and say whether there is an accelerator.

    Without one, veRL has to be told so before it is imported. It repeats that, and it names every engine that
    could be installed, which nobody has asked for.
    """
    import torch

    logging.getLogger(PLATFORM_LOGGER).addFilter(is_worth_reading)
    warnings.filterwarnings("ignore", message=r".* engine is not available", category=UserWarning)
    there = torch.cuda.is_available()
    if not there:
        os.environ.setdefault(PLATFORM_VARIABLE, "cpu")
    return there


def registered() -> Any:
    """The module with veRL's registries of estimators and losses."""
    get_ready()
    import verl.trainer.ppo.core_algos

    return verl.trainer.ppo.core_algos


def is_for_verl_to_judge(cfg: Mapping[str, Any]) -> bool:
    """Whether `cfg` (plain data) sets a key that veRL checks and that our table has no kind for.

    What is true or false by default is nothing to judge: both are served.
    """
    return any(key.startswith(JUDGED) and is_open(key) and not is_switch(key) for key, _ in changes(cfg))


def validate(cfg: DictConfig) -> None:
    """veRL's own checks of its keys.

    Raises:
        ValueError: one of them fails.
    """
    get_ready()
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        with redirect_stdout(io.StringIO()):  # it praises what passes, where `explain --json` writes
            reference, critic = need_reference_policy(cfg), need_critic(cfg)
            validate_config(config=cfg, use_reference_policy=reference, use_critic=critic)
    except (AssertionError, AttributeError, HydraException, TypeError, ValueError) as error:
        cause = error.__cause__ or error  # Hydra wraps what veRL's own classes raise
        why = " ".join(str(cause).split()) or traceback.extract_tb(cause.__traceback__)[-1].line
        raise ValueError(f"veRL refuses this config: {why}") from error
