"""Service times from the trace of a run.

Theory of operation. A span that lasts while work is done is a draw of its service time; one that waits is the
schedule's own, and is left to the loops. Other times are found by difference: the way of a request is the
time between its shard and its forward pass where no request had to wait, without the time of the env worker's
process for it, by which the answers of one pass are apart; the time of a learner in a batch outside of its
micro-batches, optimizer steps and anchor is a cost of the batch. The first batch is left out wherever there
are others: it pays for parts that are built once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rlinf_async.lab.lengths import EpisodeLengths, mean_of_most
from rlinf_async.lab.plan.job import Job
from rlinf_async.lab.trace import answered
from rlinf_async.lab.virtual.times import (
    DurationDraws,
    PolicyTimes,
    SimulatorTimes,
    Times,
    TrainingTimes,
    WayTimes,
    WeightTimes,
    table,
)
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.spans import Span

SAMPLE_COUNT = 4000
MAX_SPREAD = 3.0
"""The largest spread (deviation over mean of one environment) that is looked for."""


def of_one(seconds: Sequence[float], size: int, *, in_turn: bool = False) -> DurationDraws:
    """Return the distribution of one environment's time, from measured seconds of shards of `size` of
    them.

    A shard waits for the slowest, or steps its environments `in_turn`. One is taken to be log-normal: the
    mean and the spread of the slowest of `size`, or of their sum, then tell its own. With a `size` of 1 the
    measurements are kept.
    """
    if size == 1:
        return DurationDraws.of(seconds)
    if in_turn:
        whole = DurationDraws.of(seconds)
        return DurationDraws(mean=whole.mean / size, cv=whole.cv * size**0.5)
    mean, target_spread = float(np.mean(seconds)), float(np.std(seconds) / np.mean(seconds))
    normal = np.random.default_rng(0).standard_normal((SAMPLE_COUNT, size)).max(axis=1)
    low, high = 0.0, MAX_SPREAD
    for _ in range(40):
        middle = (low + high) / 2
        slowest = np.exp(_sigma(middle) * normal)
        low, high = (
            (middle, high) if float(np.std(slowest) / np.mean(slowest)) < target_spread else (low, middle)
        )
    sigma = _sigma(low)
    return DurationDraws(mean=mean / float(np.mean(np.exp(sigma * normal - sigma * sigma / 2))), cv=low)


def without_contention(began: Sequence[float], ended: Sequence[float]) -> npt.NDArray[np.float64]:
    """Seconds of each call by itself, where calls that overlapped had equal shares of their process.

    Python runs one thread at a time, so that `n` simulators that step in threads at the same time take up to
    `n` times as long as one. Together these seconds are the time in which any call was under way.

    Args:
        began: When each call began, in seconds.
        ended: When each ended, in the same order.
    """
    moments = np.concatenate([began, ended])
    order = np.argsort(moments, kind="stable")
    changes = np.concatenate([np.ones(len(began)), -np.ones(len(ended))])[order]
    at, under_way = moments[order], np.cumsum(changes)[:-1]
    shares = np.divide(np.diff(at), under_way, out=np.zeros(len(under_way)), where=under_way > 0)
    service_s = np.concatenate([[0.0], np.cumsum(shares)])
    result: npt.NDArray[np.float64] = np.interp(ended, at, service_s) - np.interp(began, at, service_s)
    return result


def _sigma(cv: float) -> float:
    return float(np.sqrt(np.log1p(cv * cv)))


UNQUEUED_SHARE = 0.1
"""The share of requests that are taken to have met an idle rank: the fastest ones."""
MAX_DRAWS = 2000
"""Draws of each kind that are kept at most."""


def times_of(spans: Sequence[Span], job: Job) -> Times:
    """The service times that a trace shows.

    Raises:
        ValueError: it lacks what a run does.
    """
    kinds: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if "error" not in span and span.get("mode") != "eval":
            kinds[span["kind"]].append(span)
    if not spans:
        raise ValueError("there is no readable trace, and a plan takes its times from it")
    for kind in ("step", "forward", "accept", "finish"):
        if not kinds[kind]:
            raise ValueError(f"the trace has no span {kind!r}: it is not of a whole run")
    steady = _after_first(kinds)
    lengths = lengths_of(steady, job.settings)
    training, way = _training(steady, job.settings, lengths), _way(steady)
    weights = WeightTimes(
        copy_s=_mean(steady["copy"]), send_s=_mean(steady["send"]), load_s=_mean(steady["load"])
    )
    return Times(
        simulators=replace(_simulators(kinds, job), lengths=lengths),
        policy=_policy(kinds["forward"]),
        training=training,
        way=way,
        weights=weights,
        # Simulators in the threads of one process have it one at a time, however many cores there are.
        cores=1 if job.stepping == "in turn" else 0,
        decision_steps=job.decision_steps,
    )


def _seconds(span: Span) -> float:
    return float(span["ended"] - span["began"])


def _after_first(kinds: Mapping[str, list[Span]]) -> dict[str, list[Span]]:
    """Return the spans that began after the first batch was trained, of the kinds that have any."""
    first = min(span["ended"] for span in kinds["finish"])
    later = {kind: [span for span in spans if span["began"] >= first] for kind, spans in kinds.items()}
    return defaultdict(list, {kind: later[kind] or spans for kind, spans in kinds.items()})


def lengths_of(kinds: Mapping[str, Sequence[Span]], settings: RunSettings) -> EpisodeLengths | None:
    """Return the lengths of the episodes of a run that leaves out what comes after their ends; else None.

    A request is of the environments of a shard that play on: where it has fewer than the one before,
    episodes have ended in between. Only rollouts that the trace has from their reset on are looked at.
    """
    if not settings.skips_ended:
        return None
    played = {(span["shard"], span["number"]) for span in kinds["step"]}
    asks: dict[int, list[Span]] = defaultdict(list)
    for span in kinds["ask"]:
        if "size" in span:
            asks[span["shard"]].append(span)
    lengths: list[int] = []
    for shard, own in asks.items():
        own.sort(key=lambda span: span["number"])
        begins = [span["ended"] for span in kinds["reset"] if span["shard"] == shard]
        rollouts: dict[int, list[int]] = defaultdict(list)
        for span in own:
            # A request that no step follows is for a last value; the next rollout may have begun already.
            is_last = (shard, span["number"]) not in played
            number = max(rollouts, default=0) if is_last else bisect_right(begins, span["began"])
            rollouts[number].append(span["size"])
        for number, sizes in rollouts.items():
            if number:
                lengths += _ends(sizes, settings)
    return EpisodeLengths(seen=tuple(lengths)) if lengths else None


def _ends(sizes: Sequence[int], settings: RunSettings) -> Iterator[int]:
    """Yield the lengths of the episodes of a rollout, by the sizes of its requests."""
    if sizes[0] != settings.plan.envs_per_shard:
        return
    for length, (before, after) in enumerate(pairwise([*sizes, 0]), start=1):
        yield from [length] * (before - after)


def _simulators(kinds: Mapping[str, list[Span]], job: Job) -> SimulatorTimes:
    """Return the times of single environments, which draw from the times of all shards, each by its own
    mean.
    """
    plan, vectorised, in_turn = (
        job.settings.plan,
        job.stepping == "at once",
        job.stepping == "in turn",
    )
    measured = _without_contention(kinds) if in_turn else kinds
    steps = _by_shard(measured["step"])
    means = {shard: float(np.mean(seconds)) for shard, seconds in steps.items()}
    overall = float(np.mean(list(means.values())))
    relative = [one / means[shard] for shard, seconds in steps.items() for one in seconds]
    resets = [one for seconds in _by_shard(measured["reset"]).values() for one in seconds]
    size = 1 if vectorised else plan.envs_per_shard
    decision = of_one([one * overall for one in relative[:MAX_DRAWS]], size, in_turn=in_turn)
    factors = [means.get(env // plan.envs_per_shard, overall) / overall for env in range(plan.total_envs)]
    return SimulatorTimes(
        decision=decision,
        reset=of_one(resets[:MAX_DRAWS], size, in_turn=in_turn) if resets else DurationDraws(mean=0.0),
        tasks=tuple(factors),
        vectorised=vectorised,
        in_turn=in_turn,
    )


def _without_contention(kinds: Mapping[str, list[Span]]) -> Mapping[str, list[Span]]:
    """Steps and resets as long as they would have been if each had had its process for itself."""
    by_itself: dict[str, list[Span]] = {"step": [], "reset": []}
    for _, spans in _by_process([*kinds["step"], *kinds["reset"]]):
        seconds = without_contention([one["began"] for one in spans], [one["ended"] for one in spans])
        for span, lasted in zip(spans, seconds.tolist(), strict=True):
            by_itself[span["kind"]].append({**span, "ended": span["began"] + lasted})
    return by_itself


def _by_shard(spans: Iterable[Span]) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for span in spans:
        seconds[int(span["shard"])].append(_seconds(span))
    return seconds


def _policy(spans: Sequence[Span]) -> PolicyTimes:
    """As measured up to the largest batch, and beyond it along a straight line through all batches."""
    passes = [(int(span["size"]), _seconds(span)) for span in spans]
    sizes, seconds = np.array(passes).T
    line = np.polyfit(sizes, seconds, 1)[0] if len(set(sizes.tolist())) > 1 else 0.0
    points = table(passes)
    # A larger batch is not faster: where it was, that was chance.
    rising = np.maximum.accumulate([lasted for _, lasted in points])
    return PolicyTimes(
        env_s=max(0.0, float(line)),
        by_size=tuple((size, float(lasted)) for (size, _), lasted in zip(points, rising, strict=True)),
    )


def _way(kinds: Mapping[str, list[Span]]) -> WayTimes:
    pairs = list(answered(kinds))
    way_there = [forward["began"] - ask["began"] for ask, forward in pairs]
    back = [ask["ended"] - forward["ended"] for ask, forward in pairs]
    worker_s = 2 * _answer_gap_s(pairs)
    both = float(np.quantile(way_there, UNQUEUED_SHARE) + np.quantile(back, UNQUEUED_SHARE)) if pairs else 0.0
    return WayTimes(request_s=max(0.0, both - worker_s), worker_s=worker_s, put_s=_mean(kinds["put"]))


def _answer_gap_s(pairs: Sequence[tuple[Span, Span]]) -> float:
    """Return the seconds of an env worker's process per answer: the ends of the answers of one pass are
    that far apart.
    """
    passes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for ask, forward in pairs:
        passes[ask["process"], id(forward)].append(ask["ended"])
    gaps = [(max(ends) - min(ends)) / (len(ends) - 1) for ends in passes.values() if len(ends) > 1]
    return float(np.median(gaps)) if gaps else 0.0


def _training(
    kinds: Mapping[str, list[Span]], settings: RunSettings, lengths: EpisodeLengths | None
) -> TrainingTimes:
    horizon = settings.horizon
    # Decisions of a rollout that the learner scores and trains, and those that inference scores of it.
    live, beyond, scored = float(horizon), float(settings.normalizes), float(horizon + settings.normalizes)
    if lengths is not None:
        played = np.minimum(lengths.seen, horizon)
        scored = 1.0 + mean_of_most(played, settings.plan.piece_size)
        if settings.left_out.masked:
            live = float(played.mean())
            beyond *= float(np.mean([length > horizon for length in lengths.seen]))
            scored = live + beyond
    accepts, finishes = kinds["accept"], kinds["finish"]
    passes, steps = kinds["micro-batch"], kinds["optimizer step"]
    rollouts = settings.plan.trajectories_per_batch / settings.plan.learner_ranks
    per_rank = live * rollouts
    within_accepts = _within(accepts, [*passes, *steps])
    within_finishes = _within(finishes, [*passes, *steps])
    batches = len(finishes)
    accept_s = (sum(map(_seconds, accepts)) - within_accepts) / batches
    finish_s = (sum(map(_seconds, finishes)) - within_finishes) / batches
    if passes:
        sample_s = _mean(passes) / (settings.micro_batch_size * live / horizon)
    else:
        # The host records no passes: what a batch takes is theirs, and the anchor's third.
        shares = settings.update_epoch + settings.asynchrony.recomputes / 3
        sample_s, accept_s, finish_s = (accept_s + finish_s) / per_rank / shares, 0.0, 0.0
    recomputes = settings.asynchrony.recomputes
    samples = rollouts * (live + beyond)
    by_inference = sum(span["size"] for span in kinds["score"]) / settings.plan.learner_ranks / batches
    # What it scored for nothing, as the learner took it back, counts, too: it is little.
    samples *= max(1.0 - by_inference / (rollouts * scored), 1.0 / settings.plan.pieces_per_rank)
    share = accept_s / samples / sample_s if recomputes and sample_s and passes else 1 / 3
    return TrainingTimes(
        sample_s=sample_s,
        score_share=share,
        optimizer_step_s=_mean(steps),
        batch_s=max(0.0, finish_s) + (0.0 if recomputes else max(0.0, accept_s)) + _between(kinds),
    )


def _mean(spans: Sequence[Span]) -> float:
    return float(np.mean([_seconds(span) for span in spans])) if spans else 0.0


def _within(outer: Sequence[Span], inner: Sequence[Span]) -> float:
    """Seconds of the inner spans that lie in an outer one of the same process."""
    total = 0.0
    for process, spans in _by_process(outer):
        inside = [one for one in inner if one["process"] == process]
        for span in spans:
            total += sum(
                _seconds(one)
                for one in inside
                if span["began"] <= one["began"] and one["ended"] <= span["ended"]
            )
    return total


def _by_process(spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    for process in sorted({span["process"] for span in spans}):
        yield process, [span for span in spans if span["process"] == process]


def _between(kinds: Mapping[str, list[Span]]) -> float:
    """From the end of a batch to the first look for the next one, without copying weights."""
    gaps = []
    for process, finishes in _by_process(kinds["finish"]):
        fetches = sorted(one["began"] for one in kinds["fetch"] if one["process"] == process)
        copies = [one for one in kinds["copy"] if one["process"] == process]
        for span in finishes:
            following = next((began for began in fetches if began >= span["ended"]), None)
            if following is not None:
                copy_s = sum(_seconds(one) for one in copies if span["ended"] <= one["began"] < following)
                gaps.append(following - span["ended"] - copy_s)
    return max(0.0, float(np.median(gaps))) if gaps else 0.0
