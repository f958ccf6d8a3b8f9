"""How a run has environments leave out the frames that nobody looks at, on every host."""

from __future__ import annotations

ADAPTER_GROUP = "rlinf_async.frames"
"""Entry points by the names of a framework's environments (`env_type`): functions of an environment class
that return a subclass with `draw_last_only`, or None where the class is not one that they know."""

DRAW_METHOD = "draw_last_only"
"""A method of environments, without arguments: from now on the last observation of each `chunk_step` is
looked at, and no other. Which frames they leave out is for them to know; see docs/extending.md."""


def draw_last_only(env: object) -> None:
    """Have environments draw what is looked at; those that cannot draw as ever."""
    leave_out = getattr(getattr(env, "unwrapped", env), DRAW_METHOD, None)
    if callable(leave_out):
        leave_out()
