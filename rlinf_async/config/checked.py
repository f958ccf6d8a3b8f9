"""Reads an `async` block that a user has written; a refusal names value, limit and the nearest valid choice.

Worker processes do not import this module: they get a block that the driver has checked.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, get_args

from rlinf_async.config.block import MODE_LEVELS, SCHEMAS, AsyncConfig, with_flags
from rlinf_async.core.config_keys import clipped, did_you_mean, nearest, shortened
from rlinf_async.core.types import Correction

LONGEST_WAIT_MS = 60 * 60 * 1000
"""An hour: no limit on waits of a run is meant to be found by a batch that waits for company."""

MIN_COMMON_LETTERS = 5
"""Letters at the beginning with which `streaming` is a misspelling of `streamer`."""

LARGEST_SETTING = 1e9
"""The largest setting above 0. Most are times: seconds of 30 years, as clocks of threads end at some 9e9."""


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        from rlinf_async.config.removed import check_not_removed  # read for a refused key alone

        # First, as a removed value has its own message instead of a suggestion.
        check_not_removed(name, value)
        # A null is no misspelt word: `none` would mean something else.
        hint, shown = ("", "null") if value is None else (did_you_mean(value, choices), shortened(value))
        raise ValueError(f"{name}={shown} must be one of {', '.join(choices)}{hint}")


def check_whole(name: str, value: Any, *, least: int, or_else: str | None = None) -> None:
    """Check for a whole number of at least `least`, or the word `or_else`."""
    if or_else is not None and value == or_else:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        word = "" if or_else is None else f"{or_else} or "
        # A word has no nearest number, and the least number could mean the opposite of the user's intent.
        near = f"; nearest: {max(least, round(value))}" if is_finite(value) else ""
        raise ValueError(f"{name}={shortened(value)} must be {word}a whole number of at least {least}{near}")


def check_above_zero(name: str, value: Any, *, auto: bool = False) -> None:
    """Check for a finite number above 0, or for `auto` if it is allowed."""
    if auto and value == "auto":
        return
    word = "auto or " if auto else ""
    # `math.inf`, not `is_finite`: a whole number may be too large for a float.
    if isinstance(value, int | float) and LARGEST_SETTING < value < math.inf:
        largest = f"{LARGEST_SETTING:.0f}"
        raise ValueError(
            f"{name}={shortened(value)} must be {word}a number up to {largest}; nearest: {largest}"
        )
    if not (is_finite(value) and value > 0):
        raise ValueError(f"{name}={shortened(value)} must be {word}a finite number above 0; nearest: 1")


def check_range(name: str, value: Any, *, most: int) -> None:
    """Check for a finite number from 0 to `most`, or for `auto`."""
    if value != "auto" and not (is_finite(value) and 0 <= value <= most):
        near = f"; nearest: {most if value > 0 else 0}" if is_finite(value) else ""
        raise ValueError(f"{name}={shortened(value)} must be auto or a finite number from 0 to {most}{near}")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={shortened(value)} must be true or false")


def is_finite(value: Any) -> bool:
    # `math.isfinite` raises for whole numbers that are too large for a float; NaN compares as False.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def check_keys(path: str, block: Mapping[str, Any], schema: Any) -> None:
    """Check that every key of `block` is a field of the dataclass `schema`."""
    valid = [item.name for item in fields(schema)]
    for key in block:
        if key not in valid:
            from rlinf_async.config.removed import check_not_removed  # as above

            # First, as a removed key has its own message instead of a suggestion.
            check_not_removed(f"{path}.{key}")
            begin = str(key)[:MIN_COMMON_LETTERS]
            same = (each for each in valid if len(begin) == MIN_COMMON_LETTERS and each.startswith(begin))
            near = next(same, None) or nearest(key, valid, cutoff=0.5)
            hint = f"did you mean {path}.{near}?" if near else f"valid keys: {', '.join(valid)}"
            raise ValueError(f"unknown key {path}.{clipped(str(key))}; {hint}")


def check_block(
    path: str, content: Any, schema: Any, *, first: str = "", flag: bool = False
) -> dict[str, Any]:
    """Return the block at `path`, with known keys only.

    Args:
        first: the key to suggest if a single number is given; "" for none.
        flag: True if `true` and `false` are accepted instead of the block.
    """
    if content is not None and not isinstance(content, Mapping):
        # Python's bool is an int.
        number = content if isinstance(content, int) and not isinstance(content, bool) else 1
        hint = f"; nearest: {path}.{first}={number}" if first else ""
        if isinstance(content, list):  # an override sets no key of a list
            example = first or next(field.name for field in fields(schema))
            words = ", true or false" if flag else ""
            hint = f"{words}; write {{{example}: ...}} instead of the list"
        elif flag:
            hint = f", true or false; nearest: {path}={str(number != 0).lower()}"
        raise ValueError(f"{path}={shortened(content)} must be a block{hint}")
    block = dict(content or {})
    check_keys(path, block, schema)
    return block


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
