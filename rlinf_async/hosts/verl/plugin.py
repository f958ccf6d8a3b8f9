"""The module of the entry point group `verl.plugins`: its import registers the platform and the trainer.

veRL imports it in every process, while veRL itself is being imported, and logs errors at level DEBUG only;
users would just see that the trainer is unknown. So this module prints the cause.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any


def guard() -> None:
    """Check every config in veRL's `validate_config`; a second call does nothing.

    A run of veRL's own commands with an `async` block ends before Ray starts, unless it has
    `trainer.v1.trainer_mode=vla_async`, the only trainer that reads the block. Every entry script of veRL
    calls `validate_config` first.
    """
    import verl.utils.config

    from rlinf_async.hosts.verl.recognition import another_mode, is_verls

    stock = verl.utils.config.validate_config
    # The attribute that `wraps` sets.
    if hasattr(stock, "__wrapped__"):
        return

    @wraps(stock)
    def validate_config(config: Any, *args: Any, **kwargs: Any) -> Any:
        if is_verls(config) and (why := another_mode(config)):
            _write(f"error: {why}")
            # `ending.CONFIG_ERROR`: the run cannot begin, and `supervise` does not retry it.
            raise SystemExit(2)
        return stock(config, *args, **kwargs)

    # Early enough for scripts with `from verl.utils.config import validate_config`: veRL loads plugins
    # before.
    verl.utils.config.validate_config = validate_config


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


try:
    from rlinf_async.hosts.verl import platform, trainer

    guard()
except Exception as error:
    # The only message that users see: veRL catches every Exception of a plugin and logs it at DEBUG.
    _write(
        f"rlinf-async: veRL has no trainer mode vla_async in this process: {type(error).__name__}: {error}; "
        "`rlinf-async doctor` looks for the cause"
    )
    raise

__all__ = ["guard", "platform", "trainer"]
