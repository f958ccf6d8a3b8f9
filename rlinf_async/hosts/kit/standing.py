"""Environments of which some simulators stand: their episodes have ended, and nothing counts of them."""

from __future__ import annotations

from rlinf_async.hosts.kit.playing import Playing

LET_PLAY_METHOD = "let_play"
"""A method of environments that step single simulators: those at the given numbers are stepped from now on,
all of them with None; the others give again what they gave last. See docs/extending.md."""


def let_play(env: object, playing: Playing | None) -> bool:
    """Have those of `env` stepped that are `playing` (None: all); False if it can leave nobody alone."""
    method = getattr(getattr(env, "unwrapped", env), LET_PLAY_METHOD, None)
    if not callable(method):
        return False
    method(None if playing is None else list(playing.numbers))
    return True
