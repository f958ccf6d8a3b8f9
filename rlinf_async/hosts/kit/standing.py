"""Environments that leave single simulators alone after the end of their episodes."""

from __future__ import annotations

from rlinf_async.hosts.kit.playing import Playing

LET_PLAY_METHOD = "let_play"
"""A method of environments that step single simulators: those at the given numbers are stepped from now on,
all of them with None; the others repeat their last output. See docs/extending.md."""


def let_play(env: object, playing: Playing | None) -> bool:
    """Step only the simulators of `env` that are `playing` (None: all); return False if `env` cannot."""
    method = getattr(getattr(env, "unwrapped", env), LET_PLAY_METHOD, None)
    if not callable(method):
        return False
    method(None if playing is None else list(playing.numbers))
    return True
