"""The work that a config leaves out by `async.skip`, its share, and what keeps the rest of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.judge.reasons import Reason

MEASURED_SHARE = "a run logs the share as async/skipped/{}"
AFTER_THE_END, FILTERED = "after the end of an episode", "of groups that a filter masks"
"""The samples that a mask leaves out of training."""
DECLARED = Reason("single environments stand still if their class has the method let_play")
"""Why environments that a package declares may be stepped until the last episode of their shard has ended."""


@dataclass(frozen=True, kw_only=True)
class DeadWork:
    """One kind of work that `async.skip` names, of a config for which it is on."""

    kind: str
    left_out: str = ""
    """The work that is left out, and its share; empty where none is."""
    kept: tuple[str, ...] = ()
    """Why some of it is done all the same, each with what to write instead."""


def frames(*, steps_per_decision: int, kept: Iterable[Reason] = ()) -> DeadWork:
    """Return what is left out of drawing.

    Args:
        steps_per_decision: environment steps of a decision, of which the policy sees the last.
        kept: why environments draw every frame.
    """
    reasons = told(kept)
    if steps_per_decision == 1:
        reasons = ("a decision is one step, whose frame the policy sees",)
    if reasons:
        return DeadWork(kind="frames", kept=reasons)
    share = 1 - 1 / steps_per_decision
    return DeadWork(
        kind="frames",
        left_out=f"the frames between two decisions are not drawn: {share:.0%} of those of whole episodes",
    )


def ended(*, skips: bool, stands: bool, kept: Iterable[Reason]) -> DeadWork:
    """Return what is left out after the end of an episode.

    Args:
        skips: True if a rollout ends with its last episode.
        stands: True if single simulators are not stepped, while others of their shard play on.
        kept: why a rollout does not end with its last episode, or why simulators are stepped until then.
    """
    if not skips:
        return DeadWork(kind="ended", kept=told(kept))
    unit = "a simulator is not stepped" if stands else "a shard is not stepped once all of its episodes have"
    return DeadWork(
        kind="ended",
        left_out=(
            f"after the end of an episode nothing is inferred, and {unit}; the share grows with success, "
            f"and {MEASURED_SHARE.format('env_steps')}"
        ),
        kept=told(kept),
    )


def masked(
    left_out: LeftOut, *, masks: Sequence[str] = (AFTER_THE_END,), kept: Iterable[Reason] = ()
) -> DeadWork:
    """Return what is left out of training.

    Args:
        masks: the samples that are masked.
        kept: why samples without a gradient are trained all the same.
    """
    samples = [
        *(masks if left_out.masked else []),
        *(["of groups with equal rewards"] if left_out.silent else []),
    ]
    share = MEASURED_SHARE.format("samples")
    said = f"samples {', '.join(samples)} are in no pass of the learner; {share}" if samples else ""
    reasons = told(kept)
    nothing = ("every sample counts",) if not (samples or reasons) else ()
    return DeadWork(kind="masked", left_out=said, kept=reasons or nothing)


def told(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return the words of `reasons`, each with the override that removes it, where there is one."""
    return tuple(
        f"{reason.text}; {reason.override} leaves that out"
        if reason.override and reason.override not in reason.text
        else reason.text
        for reason in reasons
    )


def of_own_workers(
    asynchrony: AsyncConfig,
    *,
    steps_per_decision: int,
    skips_ended: bool,
    left_out: LeftOut,
    kept: Iterable[Reason] = (),
    kept_samples: Iterable[Reason] = (),
) -> list[dict[str, Any]]:
    """Return, as plain data, what a host without RLinf's workers leaves out.

    Args:
        kept: why steps after the end of an episode are played, and trained.
        kept_samples: why other samples without a gradient are trained.
    """
    drawing = frames(steps_per_decision=steps_per_decision)
    if drawing.left_out:
        able = "by environments with the method draw_last_only"
        drawing = replace(drawing, left_out=f"{drawing.left_out}, {able}")
    reasons = list(kept)
    ends = ended(skips=skips_ended, stands=False, kept=[*reasons, DECLARED] if skips_ended else reasons)
    samples = masked(left_out, kept=[*reasons, *kept_samples])
    return facts_of(asynchrony, [drawing, ends, samples])


def facts_of(asynchrony: AsyncConfig, works: Iterable[DeadWork]) -> list[dict[str, Any]]:
    """Return the kinds that are on, as plain data."""
    return [asdict(work) for work in works if asynchrony.skip.kinds[work.kind]]


def rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of an explanation, for a reader."""
    for number, one in enumerate(facts["dead_work"]):
        if not number:
            yield "left out", "work that no result depends on (async.skip)"
        kept = "; ".join(one["kept"])
        text = f"{one['left_out']}; {kept}" if kept else one["left_out"]
        yield f"  {one['kind']}", text if one["left_out"] else f"nothing: {kept}"
