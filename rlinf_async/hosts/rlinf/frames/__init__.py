"""Makes RLinf's environments render only the last frame of a decision, one module per simulator."""

from __future__ import annotations

from typing import Any

from rlinf_async.core.frames import Frames


class LastFrames:
    """A mixin before a class of RLinf; its `chunk_step` must call `step` once for each action.

    Subclasses implement skipping a frame. No frames are left out before `draw_last_only` is called.
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

    @property
    def frames_drawn_s(self) -> float:
        return self._frames.count.drawn_s

    def chunk_step(self, chunk_actions: Any) -> tuple[Any, ...]:
        if not self._last_only:
            return super().chunk_step(chunk_actions)  # type: ignore[misc]
        with self._frames.decision(chunk_actions.shape[1]):
            observations, *rest = super().chunk_step(chunk_actions)  # type: ignore[misc]
        # None for steps that were not rendered: RLinf's `RecordVideo` skips None.
        return ([None] * (len(observations) - 1) + observations[-1:], *rest)


def subclass_of(env_cls: type, mixin: type, *, needs: tuple[str, ...]) -> type | None:
    """Return a class with `mixin` before `env_cls`; None if `env_cls` lacks a method that the mixin
    `needs`.
    """
    if not all(callable(getattr(env_cls, name, None)) for name in ("chunk_step", *needs)):
        return None
    return type(env_cls.__name__, (mixin, env_cls), {"__module__": env_cls.__module__})
