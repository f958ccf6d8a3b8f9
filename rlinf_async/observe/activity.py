"""The work and the waits of every process of a run, from their own reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async.observe.kinds import words


def who_does_what(processes: Mapping[str, Mapping[str, Any] | None]) -> list[tuple[str, str]]:
    """A line for each process: its name, and what goes on in it, with counts and ages; the oldest first.

    Args:
        processes: by name, what `RunProcess.doing` of the host says; None for one that does not answer.
    """
    return [(name, _line(activity)) for name, activity in processes.items()]


def progress_of(processes: Mapping[str, Mapping[str, Any] | None]) -> dict[str, int]:
    """Return the count of ended spans of each process that answers: the run moves when a count has
    changed.
    """
    return {name: int(activity["ended"]) for name, activity in processes.items() if activity is not None}


def _line(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "does not answer"
    parts = [_group(kind, spans) for kind, spans in _by_kind(_innermost(answer["open"])).items()]
    if "trajectories" in answer:
        parts.append(f"version {answer['version']}; {answer['trajectories']}")
    return ", ".join(parts) or "between two tasks"


def _by_kind(spans: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for span in spans:
        groups[str(span["kind"])].append(span)
    return groups


def _innermost(spans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the training that a micro-batch or an optimizer step is part of, and what runs ahead of it."""
    kinds = {span["kind"] for span in spans}
    trains = kinds & {"accept", "finish"}
    outer = {"fetch"} if trains else set()
    if kinds & {"micro-batch", "optimizer step"}:
        outer |= {"accept", "finish"}
    return [span for span in spans if span["kind"] not in outer]


def _group(kind: str, spans: Sequence[Mapping[str, Any]]) -> str:
    oldest = max(spans, key=lambda span: float(span["seconds"]))
    age = f"for {seconds(float(oldest['seconds']))}"
    if "shard" not in oldest:
        facts = "".join(f", {name} {oldest[name]}" for name in ("batch", "version", "size") if name in oldest)
        return f"{words(kind)} {age}{facts}"
    longest = f"shard {oldest['shard']}"
    if len(spans) == 1:
        return f"{longest} {words(kind)} {age}"
    return f"{len(spans)} shards {words(kind)} (longest: {longest}, {age})"


def seconds(number: float) -> str:
    """`0.8 s`, `63 s`, `12 min`, `2.5 h`."""
    if number < 10:
        return f"{number:.1f} s"
    if number < 600:
        return f"{number:.0f} s"
    return f"{number / 60:.0f} min" if number < 7200 else f"{number / 3600:.1f} h"
