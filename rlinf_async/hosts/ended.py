"""The reasons why steps after the end of an episode count, so that `async.skip.ended` leaves none out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.hosts.judge.reasons import Reason


def why_later_steps_count(env: Mapping[str, Any], *, key: str = "env.train") -> Iterator[Reason]:
    """Yield the reasons in the `env` section at `key` why steps after the end of an episode are trained."""
    if env.get("auto_reset"):
        yield Reason(
            f"{key}.auto_reset=true: the next episode begins at once, so that every step is trained",
            f"{key}.auto_reset=false",
        )
    if env.get("ignore_terminations"):
        yield Reason(
            f"{key}.ignore_terminations=true: an episode goes on after its termination, and all steps are "
            "trained",
            f"{key}.ignore_terminations=false",
        )
