"""A trace in the JSON format of Chrome, which Perfetto opens as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlinf_async.lab.trace.counters import Counter, counters_of
from rlinf_async.lab.trace.flows import Flow, flows_of
from rlinf_async.lab.trace.tracks import Lane, lanes_of
from rlinf_async.observe.spans import Span

Event = dict[str, Any]

HIDDEN_FACTS = {"began", "ended", "process", "pieces"}
TEXT_FACTS = {"kind", "error", "mode", "verdict", "knob", "because"}
"""Facts that are words. Any other text is left out: it could name a path of the machine."""

LABEL_FACTS = {
    **dict.fromkeys(("forward", "queued"), ("size", "")),
    **dict.fromkeys(("rollout", "put", "fetch", "accept", "finish"), ("batch", "b")),
    **dict.fromkeys(("copy", "send", "load"), ("version", "v")),
    **dict.fromkeys(("learn", "evaluate", "save"), ("step", "")),
}
"""The fact that tells slices of one kind apart, and what is put before it: `forward 16`, `rollout b3`."""
COUNTERS_NAME = "counters"


def trace_events(spans: Sequence[Span], *, pids: Mapping[str, int] | None = None) -> list[Event]:
    """Every span as a slice, with arrows between them, and counters; the time begins at the first span.

    Args:
        pids: the numbers that the machine knows the processes by, which become labels.
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


def _meta(what: str, lane: Lane, arguments: Event) -> Event:
    return {"ph": "M", "name": what, "pid": lane.pid, "tid": lane.tid, "args": arguments}


def _counters(counters: Sequence[Counter], start: float, *, pid: int) -> Iterator[Event]:
    """A process of their own, above the others."""
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
    """Its kind, with the fact that tells it apart, if it has one."""
    kind = str(span["kind"])
    fact, prefix = LABEL_FACTS.get(kind, ("", ""))
    value = span.get(fact)
    return f"{kind} {prefix}{value}" if isinstance(value, int) else kind


def _tells(name: str, value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, int | float) for one in value)
    return isinstance(value, int | float) or (isinstance(value, str) and name in TEXT_FACTS)


def _arrow(flow: Flow, number: int, lanes: dict[int, Lane], start: float) -> Iterator[Event]:
    """From the first span to the last. An arrow touches the slice in which its moment lies."""
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
