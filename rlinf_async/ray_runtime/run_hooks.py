"""The part of a framework in a run that `ray_runtime.run` drives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rlinf_async.ray_runtime.saving import SaveHooks


class RunHooks(SaveHooks, Protocol):
    """The work of a framework around a step; the driver calls it between two steps."""

    def due(self, step: int) -> tuple[bool, bool]:
        """Return two flags: evaluate after `step`, and save after `step`."""

    def log(self, batch: int, metrics: Mapping[str, float]) -> None:
        """Give the metrics of a batch to the framework's own loggers."""

    def finished(self) -> None:
        """Everything is trained and written, and the processes of the run have ended."""
