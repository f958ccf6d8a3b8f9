"""Looking for the best settings of a run: one knob after the other, on virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rlinf_async.lab.plan.job import Job
from rlinf_async.lab.plan.prediction import Prediction, foresee, foresee_stock
from rlinf_async.lab.plan.variants import beyond, changed, knobs, placements
from rlinf_async.lab.virtual.times import Times
from rlinf_async.loops.run_settings import RunSettings

MIN_GAIN = 1.01
"""Least gain, as a factor, for which a knob is moved."""
STOCK_MODES = (
    ("RLinf, synchronous", "sync", 1),
    ("RLinf, two stages", "sync", 2),
    ("RLinf, training pipeline", "pipeline", 1),
)
FEW, KEPT = 16, 2
MAX_ROUNDS = 2
"""Most rounds over all knobs."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search: the run as it is, the best that learns the same, and others."""

    now: Prediction
    best: Prediction
    beyond: tuple[Prediction, ...]
    """Predictions that change which samples are trained or how, on top of the best."""
    asked: tuple[Prediction, ...]
    """Predictions that the user asked for."""
    stock: tuple[Prediction, ...]
    """RLinf's own modes, or `off` of a host without RLinf."""

    @property
    def others(self) -> tuple[Prediction, ...]:
        """All but the run as it is and the best."""
        return (*self.asked, *self.beyond, *self.stock)

    @property
    def tempting(self) -> list[Prediction]:
        """The predictions of `beyond` that are faster than the best, the fastest first."""
        faster = [one for one in self.beyond if _faster(one, self.best)]
        return sorted(faster, key=lambda one: -one.steps_per_s.middle)


def search(job: Job, times: Times, *, tries: Iterable[Sequence[str]] = ()) -> SearchResult:
    """Go through all knobs, keep what gains, and look at RLinf's own modes and at `tries` too.

    Raises:
        ValueError: one of `tries` cannot be planned.
    """
    trials = [(tuple(overrides), changed(job, overrides)) for overrides in tries]
    chosen = _choose(job, times)
    now = best = foresee("now", job.settings, times)
    if chosen:
        found = foresee("recommended", changed(job, chosen).settings, times, overrides=chosen)
        best = found if _faster(found, now) else now
    asked = tuple(
        foresee(_name(overrides), one.settings, times, overrides=overrides) for overrides, one in trials
    )
    further = []
    for overrides in beyond(changed(job, best.overrides)):
        merged = _merged(best.overrides, overrides)
        if (settings := _planned(job, merged)) is not None:
            further.append(foresee(_name(overrides), settings, times, overrides=merged))
    return SearchResult(
        now=now, best=best, beyond=tuple(further), asked=asked, stock=tuple(_stock(job, times))
    )


def _choose(job: Job, times: Times) -> tuple[str, ...]:
    """The overrides that are left when no knob gains any more; every setting meets the same draws."""
    chosen: tuple[str, ...] = ()
    best = foresee("now", job.settings, times, draws=1)
    for _ in range(MAX_ROUNDS):
        before = chosen
        for alternatives in knobs(changed(job, chosen), micro_batches=times.training.micro_batch_s > 0):
            for overrides in [_merged(chosen, alternative) for alternative in alternatives]:
                settings = _planned(job, overrides)
                if settings is None or settings == changed(job, chosen).settings:
                    continue
                one = foresee("recommended", settings, times, overrides=overrides, draws=1)
                if _faster(one, best):
                    best, chosen = one, overrides
        if chosen == before:
            break
    return chosen


def _planned(job: Job, overrides: Sequence[str]) -> RunSettings | None:
    """The settings that `overrides` make; None where they do not divide, or the async block refuses them."""
    try:
        return changed(job, overrides).settings
    except ValueError:
        return None


def _faster(one: Prediction, other: Prediction) -> bool:
    return one.steps_per_s.middle > MIN_GAIN * other.steps_per_s.middle


def scale(job: Job, times: Times, gpus: Sequence[int], chosen: Sequence[str]) -> dict[int, list[Prediction]]:
    """For each number of accelerators, placements that divide, the fastest first.

    Planning takes as long as there are requests: on more than `FEW` accelerators only the `KEPT` placements
    are looked at that were fastest on the number before.
    """
    predictions: dict[int, list[Prediction]] = {}
    kept: list[str] | None = None
    for number in sorted(gpus):
        ranked = sorted(
            _placed(job, times, number, chosen, kept), key=lambda pair: -pair[1].steps_per_s.middle
        )
        predictions[number] = [one for _, one in ranked]
        if number >= FEW and ranked:
            kept = [name for name, _ in ranked[:KEPT]]
    return predictions


def _placed(
    job: Job, times: Times, number: int, chosen: Sequence[str], kept: Sequence[str] | None
) -> Iterator[tuple[str, Prediction]]:
    for name, overrides, shares in placements(job, gpus=number, shared=times.shared_devices):
        settings = _planned(job, (*chosen, *overrides))
        if settings is None or (kept is not None and name not in kept):
            continue
        lasting = replace(times, shared_devices=shares)
        every = (*chosen, *overrides)
        yield name, foresee(f"{number} GPUs, {name}", settings, lasting, overrides=every, draws=1)


def _stock(job: Job, times: Times) -> Iterable[Prediction]:
    """The run without any level, as the framework of the job would make it."""
    if not job.has_stock_modes:
        off = ("async.mode=off",)
        if (settings := _planned(job, off)) is not None:
            yield foresee(_name(off), settings, times, overrides=off)
        return
    for name, mode, stages in STOCK_MODES:
        try:
            yield foresee_stock(name, job.settings, times, mode=mode, stages=stages)  # type: ignore[arg-type]
        except ValueError:
            continue  # environments do not divide into two stages


def _merged(chosen: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Both; what `more` says of a key counts."""
    keys = {override.partition("=")[0] for override in more}
    return (*(one for one in chosen if one.partition("=")[0] not in keys), *more)


def _name(overrides: Sequence[str]) -> str:
    return ", ".join(one.removeprefix("async.") for one in overrides)
