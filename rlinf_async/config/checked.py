"""Reads an `async` block that a user has written.

Worker processes do not import this module: they get a block that the driver has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from rlinf_async.config.block import MODE_LEVELS, SCHEMAS, AsyncConfig, with_flags
from rlinf_async.config.checks import (
    check_above_zero,
    check_block,
    check_choice,
    check_flag,
    check_keys,
    check_range,
    check_whole,
)
from rlinf_async.core.types import Correction

LONGEST_WAIT_MS = 60 * 60 * 1000
"""An hour: no limit on waits of a run is meant to be found by a batch that waits for company."""

Check = Callable[[str, Any], None]
"""Raises a ValueError for a value that a key, given by its name, does not take."""

_POSITIVE_OR_AUTO: Check = partial(check_above_zero, auto=True)
_COUNT_OR_AUTO: Check = partial(check_whole, least=1, or_else="auto")


def _flag_or_auto(name: str, value: Any) -> None:
    if value != "auto":
        check_flag(name, value)


VALUE_CHECKS: dict[str, dict[str, Check]] = {
    "train": {
        "enabled": check_flag,
        "max_staleness": partial(check_whole, least=0),
        "correction": partial(check_choice, choices=get_args(Correction)),
    },
    "rollout": {
        "enabled": check_flag,
        "shards": _COUNT_OR_AUTO,
        "max_batch_size": _COUNT_OR_AUTO,
        "max_wait_ms": partial(check_range, most=LONGEST_WAIT_MS),
    },
    "streamer": {"enabled": check_flag, "micro_batch_size": _COUNT_OR_AUTO},
    "skip": {"frames": check_flag, "ended": check_flag, "masked": check_flag},
    "survive": {
        "env_restarts": partial(check_whole, least=0),
        "process_restarts": partial(check_whole, least=0),
    },
    "advanced": {
        "accept_bias": check_flag,
        "max_weight": _POSITIVE_OR_AUTO,
        "proximal": partial(check_choice, choices=("recomputed", "loglinear")),
        "normalization": partial(check_choice, choices=("auto", "running", "deferred")),
        "balance": partial(check_choice, choices=("auto", "exact", "tasks")),
        "fit_shards": _flag_or_auto,
        "shared_group_scene": check_flag,
        "gpu_shares": check_flag,
        "keep_checkpoints": partial(check_whole, least=1, or_else="all"),
        "measure_ratios": _flag_or_auto,
        "non_finite": partial(check_choice, choices=("refuse", "stop", "off")),
        **dict.fromkeys(("start_s", "silent_s", "window_s", "stall_s", "deadline_s"), check_above_zero),
        **dict.fromkeys(("reset_s", "step_s"), _POSITIVE_OR_AUTO),
    },
}
"""The check of every key, by block."""


def checked_config(block: Mapping[str, Any] | None) -> AsyncConfig:
    """Return the config of an `async` block.

    Raises:
        ValueError: an unknown key, a wrong type, a value outside its limits or settings that do not go
            together; the message names the value, the limit and the nearest valid choice.
    """
    block = with_flags(block or {})
    check_keys("async", block, AsyncConfig)
    mode = block.get("mode", "off")
    check_choice("async.mode", "off" if mode is False else mode, list(MODE_LEVELS))
    for name, checks in VALUE_CHECKS.items():
        path, first = f"async.{name}", "env_restarts" if name == "survive" else ""
        flag = name not in ("survive", "advanced")
        content = check_block(path, block.get(name), SCHEMAS[name], first=first, flag=flag)
        for key, check in checks.items():
            if key in content:
                check(f"{path}.{key}", content[key])
    check_flag("async.deterministic", block.get("deterministic", False))
    return AsyncConfig.from_mapping(block)
