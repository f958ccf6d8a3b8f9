"""RLinf's metric logger, which a run outlives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async.hosts.rlinf import compat
from rlinf_async.observe.metrics_outlet import MetricsOutlet


def metrics_outlet(make: Callable[[], Any], say: Callable[[str], None]) -> MetricsOutlet[Any]:
    """Return the outlet that writes to RLinf's `MetricLogger`, which `make` gives."""
    return MetricsOutlet(
        make,
        write=lambda logger, batch, metrics, **keywords: logger.log(metrics, batch, **keywords),
        close=lambda logger: logger.finish(),
        drop=compat.drop_metric_logger,
        say=say,
    )
