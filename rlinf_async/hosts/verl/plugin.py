"""The module of the entry point group `verl.plugins`: its import registers the platform and the trainer.

veRL imports it in every process, while it is being imported itself, and hides errors at the log level DEBUG;
all that a user would see is that the trainer is unknown. So the cause is printed here.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any


def guard() -> None:
    """Look at every config that veRL checks in this process; twice is once.

    An `async` block that no trainer reads ends a run of veRL's own commands before Ray starts: only
    `trainer.v1.trainer_mode=vla_async` reads one. Every entry script of veRL gives its config to
    `validate_config` before anything else.
    """
    import verl.utils.config

    from rlinf_async.hosts.verl.recognition import another_mode, is_verls

    stock = verl.utils.config.validate_config
    # The mark that `wraps` leaves.
    if hasattr(stock, "__wrapped__"):
        return

    @wraps(stock)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> Any:
        if is_verls(config) and (why := another_mode(config)):
            _write(f"error: {why}")
            # `supervise.CONFIG_ERROR`: the run cannot begin, and is not tried again.
            raise SystemExit(2)
        return stock(config, *args, **kwargs)

    # Early enough for `from verl.utils.config import validate_config`: veRL loads plugins before its scripts
    # go on.
    verl.utils.config.validate_config = validate_config


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


try:
    from rlinf_async.hosts.verl import platform, trainer

    guard()
except Exception as error:
    # The last word that a user sees of it: veRL catches every Exception of a plugin and logs it at DEBUG.
    _write(
        f"rlinf-async: veRL has no trainer mode vla_async in this process: {type(error).__name__}: {error}; "
        "`rlinf-async doctor` looks for the cause"
    )
    raise

__all__ = ["guard", "platform", "trainer"]
