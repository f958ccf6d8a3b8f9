"""The command `rlinf-async trace`: read what the processes of a run have recorded, and write one file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from rlinf_async.lab.report import redact
from rlinf_async.lab.trace.perfetto import trace_events
from rlinf_async.observe.files import write_whole
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import read_processes, read_spans

RUN_FACTS = ("title", "began", "versions", "python", "cores", "levels", "max_staleness", "steps", "plan")
"""Facts of the run in a trace; words and paths that could be private are hidden, as in a report."""


def write_trace(run: Path, out: Path) -> int:
    """Write the trace of `run` into `out`, compressed if it ends with `.gz`; the number of its spans.

    Raises:
        ValueError: there is no such run, it has recorded nothing, or `out` cannot be written.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is no directory; name the run directory, which holds config.yaml and trace/")
    records = RunDir(run)
    spans = read_spans(records.trace)
    if not spans:
        raise ValueError(f"{run} holds no trace: {_reason(records)}")
    events = trace_events(spans, pids=read_processes(records.trace))
    about = redact.plain(
        {name: fact for name, fact in records.read(records.facts).items() if name in RUN_FACTS}
    )
    content = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}).encode()
    try:
        write_whole(out, gzip.compress(content) if out.suffix == ".gz" else content, private=False)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}") from error
    return len(spans)


def _reason(records: RunDir) -> str:
    if records.trace.is_dir():
        return "its files have no span that ended; the run was over before it began to work"
    if not records.config.exists():
        return "it is no run directory of rlinf-async, or of RLinf's own script, which records nothing"
    return "the run ended before its workers were ready"
