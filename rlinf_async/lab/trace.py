"""The command `rlinf-async trace`: write the spans of a run's processes as one file for Perfetto.

The format is Chrome's JSON: a slice for each span, arrows from causes to effects, and counters.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.lab.outputs import check_replaceable, write_output
from rlinf_async.lab.report import redact
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.reading.spans import read_processes, read_spans
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import SPAN_KINDS, Process, Span, kind_and_rank

RUN_FACTS = ("title", "began", "versions", "python", "cores", "levels", "max_staleness", "steps", "plan")
"""Facts of the run in a trace; possibly private words and paths are hidden, as in a report."""


TRACE_MARK = b'{"traceEvents"'
"""The first bytes of every trace."""


def write_trace(run: Path, out: Path) -> int:
    """Write the trace of `run` to `out`, compressed if its name ends with `.gz`; return the number of spans.

    Raises:
        ValueError: there is no such run, it has no spans, or `out` cannot be written.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is no directory; name the run directory, which holds config.yaml and trace/")
    records = RunDir(run)
    spans = read_spans(records.trace)
    if not spans:
        raise ValueError(f"{run} holds no trace: {_reason(records)}")
    check_replaceable(out, TRACE_MARK)
    events = trace_events(spans, pids=read_processes(records.trace))
    facts = RunReader(run).facts()
    about = redact.plain({name: fact for name, fact in facts.items() if name in RUN_FACTS})
    content = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}).encode()
    write_output(out, gzip.compress(content) if out.suffix == ".gz" else content)
    return len(spans)


def _reason(records: RunDir) -> str:
    if records.trace.is_symlink():
        return "its trace is a symbolic link, which is not followed; name the directory that it leads to"
    if records.trace.is_dir():
        return (
            "its files have no readable span; the run was over before it began to work, or they are damaged"
        )
    if not records.config.exists():
        return "it is no run directory of rlinf-async, or of RLinf's own script, which records nothing"
    return "the run ended before its workers were ready"


Event = dict[str, Any]

HIDDEN_FACTS = {"began", "ended", "process", "pieces"}
TEXT_FACTS = {"kind", "error", "mode", "verdict", "knob", "because"}
"""Facts with texts as values. All other texts are left out, as they could be paths of the machine."""

LABEL_FACTS = {
    **dict.fromkeys(("forward", "queued"), ("size", "")),
    **dict.fromkeys(("rollout", "put", "fetch", "accept", "finish"), ("batch", "b")),
    **dict.fromkeys(("copy", "send", "load"), ("version", "v")),
    **dict.fromkeys(("learn", "evaluate", "save"), ("step", "")),
}
"""The fact that distinguishes slices of one kind, and its prefix, as in `forward 16` and `rollout b3`."""
COUNTERS_NAME = "counters"


def trace_events(spans: Sequence[Span], *, pids: Mapping[str, int] | None = None) -> list[Event]:
    """Return every span as a slice, arrows between slices, and counters; time begins at the first span.

    Args:
        pids: the processes' pids on their machine, which become labels.
    """
    placed = lanes_of(spans)
    if not placed:
        return []
    start = placed[0][0]["began"]
    lanes = {id(span): lane for span, lane in placed}
    events = list(_names(dict.fromkeys(lane for _, lane in placed), pids or {}))
    events += _counters(counters_of(spans), start, pid=1 + max(lane.pid for lane in lanes.values()))
    events += [_slice(span, lane, start) for span, lane in placed]
    for number, flow in enumerate(flows_of(spans), start=1):
        events += _arrow(flow, number, lanes, start)
    return events


def _names(lanes: dict[Lane, None], pids: Mapping[str, int]) -> Iterator[Event]:
    named_before = set()
    for lane in sorted(lanes, key=lambda lane: (lane.pid, lane.tid)):
        if lane.pid not in named_before:
            named_before.add(lane.pid)
            yield _meta("process_name", lane, {"name": lane.process})
            yield _meta("process_sort_index", lane, {"sort_index": lane.pid})
            if lane.process in pids:
                yield _meta("process_labels", lane, {"labels": f"pid {pids[lane.process]}"})
        yield _meta("thread_name", lane, {"name": lane.name})
        yield _meta("thread_sort_index", lane, {"sort_index": lane.tid})


def _meta(name: str, lane: Lane, arguments: Event) -> Event:
    return {"ph": "M", "name": name, "pid": lane.pid, "tid": lane.tid, "args": arguments}


def _counters(counters: Sequence[Counter], start: float, *, pid: int) -> Iterator[Event]:
    """Yield the counters as a separate process above the others."""
    if not counters:
        return
    lane = Lane(pid, 0, COUNTERS_NAME, COUNTERS_NAME)
    yield _meta("process_name", lane, {"name": COUNTERS_NAME})
    yield _meta("process_sort_index", lane, {"sort_index": 0})
    for counter in counters:
        for moment, values in counter.moments:
            at = _microseconds(moment - start)
            yield {"ph": "C", "name": counter.name, "pid": pid, "ts": at, "args": dict(values)}


def _slice(span: Span, lane: Lane, start: float) -> Event:
    return {
        "ph": "X",
        "name": name_of(span),
        "cat": lane.name.split(" (")[0].rstrip("0123456789 "),
        "pid": lane.pid,
        "tid": lane.tid,
        "ts": _microseconds(span["began"] - start),
        "dur": _microseconds(span["ended"] - span["began"]),
        "args": {
            name: value for name, value in span.items() if name not in HIDDEN_FACTS and _tells(name, value)
        }
        | ({"trajectories": sum(piece[3] for piece in span["pieces"])} if "pieces" in span else {}),
    }


def name_of(span: Span) -> str:
    """Return the kind of a span, with its distinguishing fact if it has one."""
    kind = str(span["kind"])
    fact, prefix = LABEL_FACTS.get(kind, ("", ""))
    value = span.get(fact)
    return f"{kind} {prefix}{value}" if isinstance(value, int) else kind


def _tells(name: str, value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, int | float) for one in value)
    return isinstance(value, int | float) or (isinstance(value, str) and name in TEXT_FACTS)


def _arrow(flow: Flow, number: int, lanes: dict[int, Lane], start: float) -> Iterator[Event]:
    """Yield an arrow from the first span to the last; an arrow touches the slice around its moment."""
    last = len(flow.spans) - 1
    for index, span in enumerate(flow.spans):
        phase = "s" if index == 0 else "f" if index == last else "t"
        lane = lanes[id(span)]
        moment = span["began"] + min(1e-6, (span["ended"] - span["began"]) / 2)
        event = {"ph": phase, "id": number, "name": flow.name, "cat": flow.name, "pid": lane.pid}
        yield {**event, "tid": lane.tid, "ts": _microseconds(moment - start), **_binding(phase)}


def _binding(phase: str) -> Event:
    return {"bp": "e"} if phase == "f" else {}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)


PROCESS_ORDER = list(Process)
TRACK_ORDER = list(dict.fromkeys(kind.track for kind in SPAN_KINDS.values() if kind.track))


@dataclass(frozen=True)
class Lane:
    """A row of a trace: a process and a thread in it, as numbers and in words."""

    pid: int
    tid: int
    process: str
    name: str


def track_of(span: Span) -> tuple[int, str]:
    """Return the place of a span in its process: a number to sort by, and a name."""
    if "shard" in span:
        return int(span["shard"]), f"shard {span['shard']}"
    kind = SPAN_KINDS.get(span["kind"])
    name = kind.track if kind is not None and kind.track else str(span["kind"])
    return (TRACK_ORDER.index(name) if name in TRACK_ORDER else len(TRACK_ORDER)), name


def lanes_of(spans: Sequence[Span]) -> list[tuple[Span, Lane]]:
    """Return every span with its lane, in order of their beginnings.

    Within a lane spans nest or follow each other; overlapping spans are put into further lanes.
    """
    tracks: dict[tuple[str, tuple[int, str]], list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span["process"], track_of(span)].append(span)
    pids = {name: pid for pid, name in enumerate(sorted({p for p, _ in tracks}, key=_process_order), start=1)}
    tids: dict[str, int] = defaultdict(int)
    placed: list[tuple[Span, Lane]] = []
    for (process, (_, name)), spans_of_track in sorted(tracks.items(), key=lambda item: item[0]):
        for number, row in enumerate(_rows(spans_of_track)):
            tids[process] += 1
            label = name if number == 0 else f"{name} ({number + 1})"
            lane = Lane(pids[process], tids[process], process, label)
            placed += [(span, lane) for span in row]
    return sorted(placed, key=lambda item: (item[0]["began"], -item[0]["ended"]))


@dataclass
class _Row:
    """Spans that nest or follow each other, and the ends of the spans still open at the last beginning."""

    spans: list[Span] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def takes(self, span: Span) -> bool:
        """Put `span` into the row, unless it overlaps; return True if it was put there."""
        while self.ends and self.ends[-1] <= span["began"]:
            self.ends.pop()
        if self.ends and span["ended"] > self.ends[-1]:
            return False
        self.spans.append(span)
        self.ends.append(span["ended"])
        return True


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    rows: list[_Row] = []
    for span in sorted(spans, key=lambda span: (span["began"], -span["ended"])):
        if not any(row.takes(span) for row in rows):
            rows.append(_Row())
            rows[-1].takes(span)
    return [row.spans for row in rows]


def _process_order(name: str) -> tuple[int, str, int]:
    kind, rank = kind_and_rank(name)
    place = PROCESS_ORDER.index(Process(kind)) if kind in PROCESS_ORDER else len(PROCESS_ORDER)
    return place, kind, rank or 0


@dataclass(frozen=True)
class Flow:
    """The way of one thing through spans, in order of time; `name` is the name of the thing."""

    name: str
    spans: tuple[Span, ...]


def flows_of(spans: Sequence[Span]) -> list[Flow]:
    """Return the flows from observations to actions, from trajectories to optimizer steps, and of weights.

    Requests are identified by shard and number, trajectories by place, batch and epoch, weights by version. A
    span without a counterpart, as after a crash, has no arrow.
    """
    kinds: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: float(span["began"])):
        kinds[span["kind"]].append(span)
    return [*_actions(kinds), *_trajectories(kinds), *_weights(kinds)]


def answered(kinds: Mapping[str, Sequence[Span]]) -> Iterator[tuple[Span, Span]]:
    """Yield every request with the forward pass that has answered it."""
    asks = {_request(span): span for span in kinds["ask"] if "number" in span}
    for forward in kinds["forward"]:
        for request in zip(forward.get("shards", ()), forward.get("numbers", ()), strict=False):
            if request in asks:
                yield asks[request], forward


def _request(span: Span) -> tuple[Any, Any]:
    return span.get("shard"), span["number"]


def _puts(kinds: Mapping[str, Sequence[Span]]) -> dict[tuple[Any, Any, Any], Span]:
    """Return the `put` spans of rollouts, by place, batch and epoch."""
    return {(put["place"], put.get("batch"), put.get("epoch")): put for put in kinds["put"] if "place" in put}


def _actions(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    steps = {_request(span): span for span in kinds["step"] if "number" in span}
    for ask, forward in answered(kinds):
        step = [steps[_request(ask)]] if _request(ask) in steps else []
        yield Flow("action", (ask, forward, *step))


def _trajectories(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    puts = _puts(kinds)
    steps: dict[str, list[Span]] = defaultdict(list)
    for step in kinds["optimizer step"]:
        steps[step["process"]].append(step)
    for accept in kinds["accept"]:
        rollouts = {(piece[0], accept.get("batch"), piece[1]) for piece in accept.get("pieces", ())}
        steps_of_rank = steps[accept["process"]]
        first = bisect_left(steps_of_rank, accept["began"], key=lambda step: float(step["ended"]))
        for rollout in rollouts & puts.keys():
            yield Flow("trajectory", (puts[rollout], accept, *steps_of_rank[first : first + 1]))


def _weights(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    sends = {send.get("version"): send for send in kinds["send"]}
    copies = {copy.get("version"): copy for copy in kinds["copy"]}
    for load in kinds["load"]:
        version = load.get("version")
        way = [span for span in (copies.get(version), sends.get(version)) if span is not None]
        if way:
            yield Flow("weights", (*way, load))


Moment = tuple[float, Mapping[str, float]]
"""A time, and the values from that time on."""


@dataclass(frozen=True)
class Counter:
    """A number, or several related ones, at moments in order of time."""

    name: str
    moments: Sequence[Moment]


def counters_of(spans: Sequence[Span]) -> list[Counter]:
    """Return the counters that follow from the spans: rollouts in flight, queues, staleness and versions.

    A request queues from its begin until the begin of the forward pass that answers it; a trajectory from its
    hand-over until a learner rank accepts it. A span without a counterpart, as after a crash, does not count.
    """
    kinds: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        kinds[span["kind"]].append(span)
    series = [
        Counter("rollouts in flight", _running(_lasting(kinds["rollout"]))),
        Counter("requests in queue", _running(_queued_requests(kinds))),
        Counter("trajectories in queue", _running(_queued_trajectories(kinds))),
        Counter("staleness", _staleness(kinds["accept"])),
        Counter("version", _versions(kinds)),
    ]
    return [counter for counter in series if counter.moments]


def _lasting(spans: Iterable[Span]) -> Iterator[tuple[float, float, int]]:
    return ((span["began"], span["ended"], 1) for span in spans)


def _queued_requests(kinds: Mapping[str, Sequence[Span]]) -> Iterator[tuple[float, float, int]]:
    for ask, forward in answered(kinds):
        yield ask["began"], max(ask["began"], forward["began"]), 1


def _queued_trajectories(kinds: Mapping[str, Sequence[Span]]) -> Iterator[tuple[float, float, int]]:
    puts = _puts(kinds)
    for accept in kinds["accept"]:
        for place, epoch, _, size, *_ in accept.get("pieces", ()):
            put = puts.get((place, accept.get("batch"), epoch))
            if put is not None:
                yield put["ended"], max(put["ended"], accept["began"]), size


def _running(stays: Iterable[tuple[float, float, int]]) -> list[Moment]:
    """Return the number of stays at each moment of a change; stays are `(from, until, how many)`."""
    changes: dict[float, int] = defaultdict(int)
    for began, end, count in stays:
        changes[began] += count
        changes[end] -= count
    now = 0
    moments: list[Moment] = []
    for moment in sorted(changes):
        now += changes[moment]
        moments.append((moment, {"count": float(now)}))
    return moments


def _staleness(accepts: Iterable[Span]) -> list[Moment]:
    moments: list[Moment] = []
    for accept in sorted(accepts, key=lambda span: float(span["began"])):
        ages = [(piece[4], piece[3]) for piece in accept.get("pieces", ())]
        count = sum(size for _, size in ages)
        if count:
            mean = sum(age * size for age, size in ages) / count
            moments.append(
                (accept["began"], {"mean": round(mean, 3), "most": float(max(age for age, _ in ages))})
            )
    return moments


def _versions(kinds: Mapping[str, Sequence[Span]]) -> list[Moment]:
    """Return the newest trained version, and the newest version in an inference rank, over time."""
    events: list[tuple[float, str, int]] = []
    for kind, name, fact, later in (("finish", "trained", "batch", 1), ("load", "acting", "version", 0)):
        numbered = (span for span in kinds[kind] if isinstance(span.get(fact), int))
        events += [(span["ended"], name, span[fact] + later) for span in numbered]
    newest: dict[str, float] = {}
    moments: list[Moment] = []
    for moment, name, version in sorted(events):
        newest[name] = max(newest.get(name, 0.0), float(version))
        moments.append((moment, dict(newest)))
    return moments
