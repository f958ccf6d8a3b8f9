"""The work that a config of RLinf's leaves out by `async.skip`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.entry_points import names_of
from rlinf_async.hosts import dead_work as kinds
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.kit.frames import ADAPTER_GROUP
from rlinf_async.hosts.rlinf.frames.choice import DECISIONS_ONLY, watcher
from rlinf_async.hosts.rlinf.left_out import reasons_kept
from rlinf_async.hosts.rlinf.settings import RLinfSettings, counts_after_the_end
from rlinf_async.hosts.rlinf.standing import stands

TRAIN_SECTION = "env.train"


def dead_work(cfg: Mapping[str, Any], settings: RLinfSettings) -> list[dict[str, Any]]:
    """Return the kinds of work that `cfg`, plain data, is to leave out, as plain data."""
    section = cfg["env"]["train"]
    works = [
        kinds.frames(steps_per_decision=settings.steps_per_decision, kept=_all_drawn(section)),
        kinds.ended(skips=settings.skips_ended, stands=stands(section), kept=counts_after_the_end(cfg)),
        kinds.masked(settings.left_out, kept=reasons_kept(cfg)),
    ]
    return kinds.facts_of(settings.asynchrony, works)


def _all_drawn(section: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield why environments of an `env` section draw every frame."""
    if key := watcher(section):
        override = f"{TRAIN_SECTION}.{key}=false"
        video = f", or ++{TRAIN_SECTION}.{DECISIONS_ONLY}=true for a video of decisions alone"
        yield Reason(
            f"{TRAIN_SECTION}.{key}=true looks at every frame; {override} leaves those between two decisions "
            f"out{video if 'video' in key else ''}",
            override,
        )
    if not section.get("env_class") and str(section["env_type"]) not in names_of(ADAPTER_GROUP):
        yield Reason(f"nobody has examined how {section['env_type']} draws, so that it draws every frame")
