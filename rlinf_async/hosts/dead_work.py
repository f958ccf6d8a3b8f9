"""The work that a config leaves out by `async.skip`, its share, and why some of it is still done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.judge.reasons import Reason

MEASURED_SHARE = "a run logs the share as async/skipped/{}"
AFTER_THE_END, FILTERED = "after the end of an episode", "of groups that a filter masks"
"""Words for the samples that a mask leaves out of training."""
LET_PLAY_REASON = Reason("single environments stand still if their class has the method let_play")
"""Why environments of another package may be stepped until the last episode of their shard has ended."""


@dataclass(frozen=True, kw_only=True)
class DeadWork:
    """One kind of work that a config leaves out."""

    kind: str
    """Its key in `async.skip`."""
    left_out: str = ""
    """A sentence on the work that is left out and its share; empty if none is left out."""
    kept: tuple[str, ...] = ()
    """Reasons why some of the work is still done, each with its remedy."""


def frames(*, steps_per_decision: int, kept: Iterable[Reason] = ()) -> DeadWork:
    """Return the frames that are not drawn.

    Args:
        steps_per_decision: environment steps of a decision; the policy sees the frame of the last one.
        kept: why environments draw every frame.
    """
    reasons = reason_texts(kept)
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
    """Return the steps after the end of an episode that are not made.

    Args:
        skips: True if a rollout ends with its last episode.
        stands: True if single simulators stop while others of their shard play on.
        kept: why a rollout does not end with its last episode, or why simulators are stepped until then.
    """
    if not skips:
        return DeadWork(kind="ended", kept=reason_texts(kept))
    unit = "a simulator is not stepped" if stands else "a shard is not stepped once all of its episodes have"
    return DeadWork(
        kind="ended",
        left_out=(
            f"after the end of an episode no action is inferred, and {unit}; the share grows with success, "
            f"and {MEASURED_SHARE.format('env_steps')}"
        ),
        kept=reason_texts(kept),
    )


def masked(
    left_out: LeftOut, *, masks: Sequence[str] = (AFTER_THE_END,), kept: Iterable[Reason] = ()
) -> DeadWork:
    """Return the samples that are not trained.

    Args:
        masks: words for the samples that are masked.
        kept: why some samples without a gradient are still trained.
    """
    samples = [
        *(masks if left_out.masked else []),
        *(["of groups with equal rewards"] if left_out.silent else []),
    ]
    share = MEASURED_SHARE.format("samples")
    text = f"samples {', '.join(samples)} are in no pass of the learner; {share}" if samples else ""
    reasons = reason_texts(kept)
    nothing = ("every sample counts",) if not (samples or reasons) else ()
    return DeadWork(kind="masked", left_out=text, kept=reasons or nothing)


def why_later_steps_count(train: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons in the section `env.train` why steps after the end of an episode are trained."""
    if train.get("auto_reset"):
        yield Reason(
            "env.train.auto_reset=true: the next episode begins at once, so that every step is trained",
            "env.train.auto_reset=false",
        )
    if train.get("ignore_terminations"):
        yield Reason(
            "env.train.ignore_terminations=true: an episode goes on after its termination, and all steps are "
            "trained",
            "env.train.ignore_terminations=false",
        )


def reason_texts(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return the texts of `reasons`, each with its override, if it has one."""
    return tuple(
        f"{reason.text}; {reason.override} leaves this work out"
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
    """Return the work that a host with the workers of `hosts.workers` leaves out, as plain data.

    Args:
        kept: why steps after the end of an episode are made, and trained.
        kept_samples: why other samples without a gradient are trained.
    """
    drawing = frames(steps_per_decision=steps_per_decision)
    if drawing.left_out:
        able = "by environments with the method draw_last_only"
        drawing = replace(drawing, left_out=f"{drawing.left_out}, {able}")
    reasons = list(kept)
    kept_steps = [*reasons, LET_PLAY_REASON] if skips_ended else reasons
    ends = ended(skips=skips_ended, stands=False, kept=kept_steps)
    samples = masked(left_out, kept=[*reasons, *kept_samples])
    return facts_of(asynchrony, [drawing, ends, samples])


def facts_of(asynchrony: AsyncConfig, works: Iterable[DeadWork]) -> list[dict[str, Any]]:
    """Return those of `works` that `async.skip` asks for, as plain data."""
    return [asdict(work) for work in works if asynchrony.skip.kinds[work.kind]]


def rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield rows with the work that a run leaves out."""
    for number, one in enumerate(facts["dead_work"]):
        if not number:
            yield "left out", "work that no result depends on (async.skip)"
        kept = "; ".join(one["kept"])
        text = f"{one['left_out']}; {kept}" if kept else one["left_out"]
        yield f"  {one['kind']}", text if one["left_out"] else f"nothing: {kept}"
