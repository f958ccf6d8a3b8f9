"""The arrows of a trace, from each cause to its effect."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlinf_async.observe.spans import Span


@dataclass(frozen=True)
class Flow:
    """A way through spans, in order of time; `name` says what went that way."""

    name: str
    spans: tuple[Span, ...]


def flows_of(spans: Sequence[Span]) -> list[Flow]:
    """From observations to actions, from trajectories to optimizer steps, from learner to inference.

    Requests are known by shard and number, trajectories by place, batch and epoch, weights by version. What
    lacks its other half, as after a crash, has no arrow.
    """
    kinds: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: float(span["began"])):
        kinds[span["kind"]].append(span)
    return [*_actions(kinds), *_trajectories(kinds), *_weights(kinds)]


def _actions(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    asks, steps = (
        {(span.get("shard"), span["number"]): span for span in kinds[kind] if "number" in span}
        for kind in ("ask", "step")
    )
    for forward in kinds["forward"]:
        for request in zip(forward.get("shards", ()), forward.get("numbers", ()), strict=False):
            if request in asks:
                step = [steps[request]] if request in steps else []
                yield Flow("action", (asks[request], forward, *step))


def _trajectories(kinds: dict[str, list[Span]]) -> Iterator[Flow]:
    puts = {(put["place"], put.get("batch"), put.get("epoch")): put for put in kinds["put"] if "place" in put}
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
