"""The work that a config of RLinf's leaves out by `async.skip`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.sharding import splitting
from rlinf_async.entry_points import names_of
from rlinf_async.hosts import dead_work as kinds
from rlinf_async.hosts.dead_work import why_later_steps_count
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.kit.playing import ADAPTER_GROUP
from rlinf_async.hosts.rlinf.left_out import reasons_kept
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.settings import counts_after_the_end
from rlinf_async.hosts.rlinf.skipped_work import DECISIONS_ONLY, stands, watcher
from rlinf_async.hosts.rlinf.view import RLinfView

TRAIN_SECTION = "env.train"


def dead_work(view: RLinfView, settings: RLinfSettings) -> list[dict[str, Any]]:
    """Return the work that a run leaves out, as plain data."""
    section = view.train
    works = [
        kinds.frames(
            steps_per_decision=settings.steps_per_decision,
            kept=_all_drawn(section, steps_per_decision=settings.steps_per_decision),
        ),
        kinds.ended(
            skips=settings.skips_ended,
            stands=stands(section),
            kept=_stepped_together(section) if settings.skips_ended else counts_after_the_end(view),
        ),
        kinds.masked(
            settings.left_out,
            masks=list(_masks(view)),
            kept=[*why_later_steps_count(section), *reasons_kept(view)],
        ),
    ]
    return kinds.facts_of(settings.asynchrony, works)


def _masks(view: RLinfView) -> Iterator[str]:
    """Yield the samples that RLinf masks."""
    if not view.unmasking_keys:
        yield kinds.AFTER_THE_END
    if view.filters_rewards:
        yield kinds.FILTERED


def _stepped_together(section: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield why simulators of an `env` section are stepped until all episodes of their shard have ended."""
    simulator = section["env_type"]
    if section.get("env_class"):
        yield kinds.LET_PLAY_REASON
    elif splitting(section) == "vectorised":
        yield Reason(
            f"{simulator} steps the environments of a shard as one batch, until the last of their episodes "
            "has ended"
        )
    elif not stands(section):
        yield Reason(f"whether single simulators of {simulator} may stand still was not examined")


def _all_drawn(section: Mapping[str, Any], *, steps_per_decision: int) -> Iterator[Reason]:
    """Yield why environments of an `env` section draw every frame."""
    if key := watcher(section):
        override = f"{TRAIN_SECTION}.{key}=false"
        video = f", or ++{TRAIN_SECTION}.video_cfg.{DECISIONS_ONLY}=true for a video of decisions alone"
        yield Reason(
            f"{TRAIN_SECTION}.{key}=true looks at every frame: {steps_per_decision} are drawn for each one "
            f"that the policy sees; {override} leaves those between two decisions out"
            f"{video if 'video' in key else ''}",
            override,
        )
    if not section.get("env_class") and str(section["env_type"]) not in names_of(ADAPTER_GROUP):
        yield Reason(f"{section['env_type']} draws every frame, as its drawing was not examined")
