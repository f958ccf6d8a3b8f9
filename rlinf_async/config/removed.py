"""Removed keys and values of the `async` block, with their replacements."""

from __future__ import annotations

from typing import Any

_MOVED_KEYS = {
    **{f"async.{name}": name for name in ("deadline_s", "stall_s")},
    **{f"async.train.{name}": name for name in ("accept_bias", "max_weight", "measure_ratios", "proximal")},
    "async.streamer.normalization": "normalization",
    "async.survive.keep": "keep_checkpoints",
    **{
        f"async.survive.{name}": name
        for name in (
            "window_s",
            "start_s",
            "reset_s",
            "step_s",
            "silent_s",
            "non_finite",
        )
    },
}
"""Keys that are in `async.advanced` now, by their old paths."""

_RESET_AHEAD = (
    "a second set of simulators, which took twice their memory, gained where simulators only sleep and was "
    "never shown to gain with real ones; leave the key out, and give cores that are free to more "
    "env.train.total_num_envs"
)
_SAVE_FAILURES = "three checkpoints in a row that cannot be written end the run; leave the key out"
REMOVED_KEYS = {
    "async.advanced.save_failures": _SAVE_FAILURES,
    "async.survive.save_failures": _SAVE_FAILURES,
    "async.advanced.reset_ahead": _RESET_AHEAD,
    "async.rollout.reset_ahead": _RESET_AHEAD,
    "async.adapt": (
        "it gained nothing where it was measured; give async.train.max_staleness and "
        "async.rollout.max_wait_ms yourself, `rlinf-async plan RUN` says what another value would give"
    ),
    "async.train.balance": (
        "a free shard takes on the next task where environments let it; leave the key out, or write "
        "async.advanced.balance=exact"
    ),
    "async.train.correction=mis": (
        "it left out every sample beyond a bound, and learned 43 % less with action tokens at a lag of 4; "
        "use tis, with the same async.advanced.max_weight"
    ),
    "async.train.correction=m2po": (
        "no run ever showed what leaving out the outliers of a batch learns, for which all of it had to be "
        "waited for; use tis, whose weights are bounded and which streams"
    ),
    "async.train.correction=vtrace": (
        "it learned 17.5 % less with action tokens and no more with anything; use decoupled, or tis, whose "
        "weights are bounded too"
    ),
    "async.train.scorer": (
        "idle inference ranks score samples that the learner has not reached, if both compute the same; "
        "leave the key out, `rlinf-async explain` says which processes score"
    ),
    "async.advanced.proximal=first_visit": (
        "with several optimizer steps a pass it learned 28 % less; use recomputed, whose pass idle "
        "inference ranks share, or loglinear, which needs no pass"
    ),
    "async.streamer.steps": (
        "every optimizer step of a pass has an equal share of every rollout (what spread did), as steps in "
        "order of arrival learned less where tasks differ in speed; leave the key out"
    ),
    "async.offload": (
        "offloading of parts that work at the same time is switched off, and `rlinf-async explain` says so; "
        "leave the key out"
    ),
    "async.trace": "every process always records its spans, in files of bounded size; leave the key out",
    "async.publication": (
        "new weights travel beside training, which took less time and memory than a transport of the "
        "framework's; leave the key out"
    ),
    "async.rollout.pad": (
        "batches are padded where rollout.enable_torch_compile or rollout.enable_cuda_graph asks for it; "
        "leave the key out"
    ),
    **{old: f"write async.advanced.{name}" for old, name in _MOVED_KEYS.items()},
}
"""The reason for a removal and the replacement, by the path of the key, or by `path=value` if only that value
was removed."""


def check_not_removed(path: str, value: Any = None) -> None:
    """Refuse the key at `path`, or its `value`, if a former version had it."""
    for name in (path, f"{path}={value}"):
        if name in REMOVED_KEYS:
            raise ValueError(f"{name} is gone: {REMOVED_KEYS[name]}")
