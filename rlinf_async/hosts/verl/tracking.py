"""veRL's metrics loggers, which a run outlives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.observe.metrics_outlet import MetricsOutlet


class LastingTracking:
    """Stands for the `Tracking` that `make` gives; what veRL does with a trainer's logger is `finish`."""

    def __init__(self, make: Callable[[], Any], *, say: Callable[[str], None]) -> None:
        self._outlet = MetricsOutlet(
            make,
            write=lambda tracking, batch, metrics: tracking.log(data=dict(metrics), step=batch + 1),
            close=lambda tracking, exit_code: tracking.finish(exit_code=exit_code),
            drop=lambda tracking: tracking.finish(exit_code=1),
            say=say,
        )

    def log(self, batch: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a batch, which veRL counts from 1."""
        self._outlet.log(batch, metrics)

    def finish(self, exit_code: int = 0) -> None:
        """Close the loggers, of a run that has failed with another code than 0; twice is once."""
        self._outlet.close(exit_code=exit_code)
