"""The common part of RLinf's environments that draw the last frame of a decision alone."""

from __future__ import annotations

from typing import Any

from rlinf_async.core.frames import Frames


class LastFrames:
    """Stands before a class of RLinf whose `chunk_step` calls `step` once for each action.

    A subclass says how a step is not drawn. Nothing is left out before `draw_last_only`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._frames = Frames()  # before RLinf's `__init__`, which builds the simulators
        self._last_only = False
        super().__init__(*args, **kwargs)

    def draw_last_only(self) -> None:
        self._last_only = True

    @property
    def frames_drawn(self) -> int:
        return self._frames.count.drawn

    @property
    def frames_left_out(self) -> int:
        return self._frames.count.left_out

    def chunk_step(self, chunk_actions: Any) -> tuple[Any, ...]:
        if not self._last_only:
            return super().chunk_step(chunk_actions)  # type: ignore[misc]
        with self._frames.decision(chunk_actions.shape[1]):
            observations, *rest = super().chunk_step(chunk_actions)  # type: ignore[misc]
        # What was not drawn is not shown: RLinf's `RecordVideo` leaves out what is None.
        return ([None] * (len(observations) - 1) + observations[-1:], *rest)


def subclass_of(env_cls: type, mixin: type, *, needs: tuple[str, ...]) -> type | None:
    """`env_cls` with `mixin` before it; None if it lacks one of the methods that the mixin `needs`."""
    if not all(callable(getattr(env_cls, name, None)) for name in ("chunk_step", *needs)):
        return None
    return type(env_cls.__name__, (mixin, env_cls), {"__module__": env_cls.__module__})
