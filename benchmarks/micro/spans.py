"""Cost of a span of the trace in its process."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

from rlinf_async.observe.spans import SpanLog

SPAN_COUNT = 20_000


def microseconds(directory: str | None, spans: int = SPAN_COUNT) -> float:
    """Return the CPU microseconds of one span; with a `directory`, its write is included."""
    log = SpanLog(directory, process="benchmark")
    began = time.process_time()
    for shard in range(spans):
        with log.span("step", shard=shard):
            pass
    return (time.process_time() - began) / spans * 1e6


def measure(rounds: int) -> dict[str, Any]:
    """Measure spans with the trace on and off, by turns; return medians over the rounds."""
    seen: dict[str, list[float]] = {"traced": [], "untraced": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            seen["traced"].append(microseconds(directory))
        seen["untraced"].append(microseconds(None))
    return {
        "cpu_us_per_span": {name: round(statistics.median(values), 2) for name, values in seen.items()},
        "spans": SPAN_COUNT,
        "rounds": rounds,
    }
