"""On every host, tells environments not to render frames that the policy does not see."""

from __future__ import annotations

ADAPTER_GROUP = "rlinf_async.frames"
"""Entry points by the name of a framework's environment (`env_type`): functions that take an environment
class and return a subclass with `draw_last_only`, or None for a class that they do not know."""

DRAW_METHOD = "draw_last_only"
"""A method of environments, without arguments. After the call, a run reads only the last observation of each
`chunk_step`, and the environments need not draw other frames; see docs/extending.md."""


def draw_last_only(env: object) -> None:
    """Call the environments' `draw_last_only`, if they have it."""
    leave_out = getattr(getattr(env, "unwrapped", env), DRAW_METHOD, None)
    if callable(leave_out):
        leave_out()
