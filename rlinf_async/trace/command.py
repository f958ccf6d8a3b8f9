"""What `rlinf-async trace` does: read what the processes of a run have recorded, and write one file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from rlinf_async.core.spans import read_spans
from rlinf_async.trace.perfetto import trace_events


def write_trace(run: Path, out: Path) -> int:
    """Write the trace of `run` into `out`, compressed if it ends with `.gz`; the number of its spans.

    Raises:
        ValueError: there is no such run, it has recorded nothing, or `out` cannot be written.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is no directory; name the run directory, which holds config.yaml and trace/")
    spans = read_spans(run / "trace")
    if not spans:
        raise ValueError(f"{run} holds no trace: {_reason(run)}")
    content = json.dumps({"traceEvents": trace_events(spans), "displayTimeUnit": "ms"}).encode()
    try:
        out.write_bytes(gzip.compress(content) if out.suffix == ".gz" else content)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}") from error
    return len(spans)


def _reason(run: Path) -> str:
    if (run / "trace").is_dir():
        return "its files have no span that ended; the run was over before it began to work"
    if not (run / "config.yaml").exists():
        return "it is no run directory of rlinf-async; runs with async.mode=off record nothing"
    return "async.trace was false, or the run ended before its workers were ready"
