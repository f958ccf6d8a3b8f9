"""Whether anything counts after the end of an episode: why `async.skip.ended` leaves nothing out of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.hosts.judge.reasons import Reason


def counts_on(env: Mapping[str, Any], *, key: str = "env.train") -> Iterator[Reason]:
    """Yield why steps after the end of an episode count in training, by the `env` section at `key`.

    Each reason has the override by which they would not.
    """
    if env.get("auto_reset"):
        yield Reason(
            f"{key}.auto_reset=true: an episode follows at once, so that every step is trained",
            f"{key}.auto_reset=false",
        )
    if env.get("ignore_terminations"):
        yield Reason(
            f"{key}.ignore_terminations=true: an episode goes on after it has come to its end, and all steps "
            "are trained",
            f"{key}.ignore_terminations=false",
        )
