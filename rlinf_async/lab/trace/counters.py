"""Numbers that change along a trace: what is under way, what queues, how old it is, which version acts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlinf_async.observe.spans import Span

Moment = tuple[float, Mapping[str, float]]
"""A time, and the values from then on."""


@dataclass(frozen=True)
class Counter:
    """A number, or several that belong together, from moment to moment, in order of time."""

    name: str
    moments: Sequence[Moment]


def counters_of(spans: Sequence[Span]) -> list[Counter]:
    """Return the counters that follow from the spans: rollouts in flight, queues, staleness and versions.

    A request queues from its asking until a forward pass that answers it begins; a trajectory from its
    hand-over until a learner rank accepts it. A span that lacks its other half, as after a crash, does not
    count.
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
    began = {(span.get("shard"), span["number"]): span["began"] for span in kinds["ask"] if "number" in span}
    for forward in kinds["forward"]:
        for request in zip(forward.get("shards", ()), forward.get("numbers", ()), strict=False):
            if request in began:
                yield began[request], max(began[request], forward["began"]), 1


def _queued_trajectories(kinds: Mapping[str, Sequence[Span]]) -> Iterator[tuple[float, float, int]]:
    put = {
        (span["place"], span.get("batch"), span.get("epoch")): span["ended"]
        for span in kinds["put"]
        if "place" in span
    }
    for accept in kinds["accept"]:
        for place, epoch, _, size, *_ in accept.get("pieces", ()):
            began = put.get((place, accept.get("batch"), epoch))
            if began is not None:
                yield began, max(began, accept["began"]), size


def _running(stays: Iterable[tuple[float, float, int]]) -> list[Moment]:
    """Return the number of stays at each moment at which it changes, from `(from, until, how many)`."""
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
    """The newest version that is trained, and the newest by which an inference rank acts."""
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
