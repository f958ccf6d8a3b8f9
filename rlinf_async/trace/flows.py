"""What led to what: the arrows of a trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Span = dict[str, Any]


@dataclass(frozen=True)
class Flow:
    """A way through spans, in order of time; `name` says what went that way."""

    name: str
    spans: tuple[Span, ...]


def flows_of(spans: Sequence[Span]) -> list[Flow]:
    """From observations to actions, from trajectories to optimizer steps, from learner to inference.

    No number travels with the data: a shard has one request at a time, so the forward pass that names it
    while it asks is the one that answers it. What cannot be matched, as after a crash, has no arrow.
    """
    kinds: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: float(span["began"])):
        kinds[span["kind"]].append(span)
    return [*_actions(kinds), *_trajectories(kinds), *_weights(kinds)]


def _actions(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    asks, steps = _by(kinds["ask"], "shard"), _by(kinds["step"], "shard")
    begins = {shard: [ask["began"] for ask in mine] for shard, mine in asks.items()}
    for forward in kinds["forward"]:
        middle = (forward["began"] + forward["ended"]) / 2
        for shard in forward.get("shards", ()):
            index = bisect_right(begins.get(shard, []), middle) - 1
            if index < 0 or asks[shard][index]["ended"] < middle:
                continue
            ask = asks[shard][index]
            step = _first_from(steps.get(shard, []), ask["ended"])
            yield Flow("action", (ask, forward) if step is None else (ask, forward, step))


def _trajectories(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    puts = {_rollout(put["place"], put["batch"], put["epoch"]): put for put in kinds["put"]}
    steps = _by(kinds["optimizer step"], "process")
    for accept in kinds["accept"]:
        rollouts = {_rollout(piece[0], accept["batch"], piece[1]) for piece in accept.get("pieces", ())}
        step = _first_ending_from(steps.get(accept["process"], []), accept["began"])
        for rollout in rollouts & puts.keys():
            way = (puts[rollout], accept)
            yield Flow("trajectory", way if step is None else (*way, step))


def _weights(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    sends = {send.get("version"): send for send in kinds["send"]}
    copies = {copy.get("version"): copy for copy in kinds["copy"]}
    for load in kinds["load"]:
        version = load.get("version")
        way = [span for span in (copies.get(version), sends.get(version)) if span is not None]
        if way:
            yield Flow("weights", (*way, load))


def _rollout(*names: Any) -> tuple[int, ...]:
    return tuple(int(name) for name in names)


def _by(spans: Iterable[Span], name: str) -> dict[Any, list[Span]]:
    groups: dict[Any, list[Span]] = defaultdict(list)
    for span in spans:
        if name in span:
            groups[span[name]].append(span)
    return groups


def _first_from(spans: Sequence[Span], moment: float) -> Span | None:
    index = bisect_left(spans, moment, key=lambda span: float(span["began"]))
    return spans[index] if index < len(spans) else None


def _first_ending_from(spans: Sequence[Span], moment: float) -> Span | None:
    index = bisect_left(spans, moment, key=lambda span: float(span["ended"]))
    return spans[index] if index < len(spans) else None
