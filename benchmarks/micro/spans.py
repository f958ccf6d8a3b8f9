"""What a span of a trace costs its process."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

from rlinf_async.observe.spans import SpanLog

SPANS = 20_000


def microseconds(directory: str | None, spans: int = SPANS) -> float:
    """CPU time of one span, its write included, by the clock of this process."""
    log = SpanLog(directory, process="benchmark")
    began = time.process_time()
    for shard in range(spans):
        with log.span("step", shard=shard):
            pass
    return (time.process_time() - began) / spans * 1e6


def measure(rounds: int) -> dict[str, Any]:
    """Medians of spans that are written and of spans that are not, by turns."""
    seen: dict[str, list[float]] = {"traced": [], "untraced": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            seen["traced"].append(microseconds(directory))
        seen["untraced"].append(microseconds(None))
    return {
        "cpu_us_per_span": {name: round(statistics.median(values), 2) for name, values in seen.items()},
        "spans": SPANS,
        "rounds": rounds,
    }
