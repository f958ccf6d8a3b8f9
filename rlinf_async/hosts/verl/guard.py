"""An `async` block that no trainer reads ends a run of veRL's own commands before Ray starts.

veRL's trainers read no such block: only `trainer.v1.trainer_mode=vla_async` does. Every entry script of veRL
gives its config to `validate_config` before anything else.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import verl.utils.config
from omegaconf import DictConfig

from rlinf_async.hosts.verl.block import another_mode, is_verls


def guard() -> None:
    """Look at every config that veRL checks in this process; twice is once."""
    stock = verl.utils.config.validate_config
    if hasattr(stock, "__wrapped__"):
        return

    @wraps(stock)
    def validate_config(config: DictConfig, *args: Any, **kwargs: Any) -> Any:
        if is_verls(config) and (why := another_mode(config)):
            sys.stderr.write(f"error: {why}\n")
            sys.stderr.flush()
            raise SystemExit(2)
        return stock(config, *args, **kwargs)

    verl.utils.config.validate_config = validate_config
