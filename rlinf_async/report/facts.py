"""What advice is given on, and what a piece of advice is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.sharding import VECTORISED_SIMULATORS, ShardPlan
from rlinf_async.core.status import WORDS
from rlinf_async.report.measures import Measures
from rlinf_async.report.run_files import RunFiles


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One setting to try, and the numbers that speak for it."""

    rule: str
    because: str
    setting: str
    before: str
    after: str
    but: str = ""
    """What it costs."""

    @property
    def sentence(self) -> str:
        cost = f" ({self.but})" if self.but else ""
        return f"{self.because}. Change {self.setting} from {self.before} to {self.after}{cost}."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What advice is given on: the measures of a run, and the settings that it could have had otherwise."""

    measures: Measures
    levels: Mapping[str, bool]
    plan: ShardPlan | None
    max_staleness: int
    max_batch_size: int | None
    max_wait_s: float
    update_epoch: int
    advantage: str
    simulator: str
    deterministic: bool
    corrects: bool
    proximal: str
    normalization: str
    publication: str
    weight_syncer: str
    bucket_dtype: str | None
    precision: str
    evaluates_every: int
    saves_every: int

    @classmethod
    def of(cls, run: RunFiles, measures: Measures) -> Facts:
        levels = run.facts.get("levels")
        setting, facts = run.setting, run.facts
        bound = _whole(facts.get("max_staleness"), 0)
        return cls(
            measures=measures,
            levels=levels if isinstance(levels, dict) else {},
            plan=_plan(facts.get("plan")),
            max_staleness=bound,
            max_batch_size=_whole(facts.get("max_batch_size"), 0) or None,
            max_wait_s=facts["max_wait_s"] if isinstance(facts.get("max_wait_s"), int | float) else 0.0,
            update_epoch=_whole(setting("algorithm.update_epoch"), 1),
            advantage=str(setting("algorithm.adv_type", "")),
            simulator=str(setting("env.train.env_type", "")),
            deterministic=setting("async.deterministic", False) is True,
            corrects=bound > 0 and setting("async.train.correction", "decoupled") not in ("none", "vtrace"),
            proximal=str(setting("async.train.proximal", "recomputed")),
            normalization=str(setting("async.streamer.normalization", "auto")),
            publication=str(setting("async.publication", "beside")),
            weight_syncer=str(setting("weight_syncer.type", "bucket")),
            bucket_dtype=setting("weight_syncer.bucket.bucket_dtype"),
            precision=str(setting("actor.model.precision", "")),
            evaluates_every=_whole(setting("runner.val_check_interval"), -1),
            saves_every=_whole(setting("runner.save_interval"), -1),
        )

    def off(self, level: str) -> bool:
        return self.levels.get(level) is False

    def on(self, level: str) -> bool:
        return self.levels.get(level) is True

    def waits(self, part: str, kind: str) -> float:
        """The share of the time that the mean shard or rank spends on a kind of span."""
        return self.measures.share(part, WORDS[kind])

    @property
    def bound(self) -> str:
        """The part that is busy nearly all the time, or nothing."""
        diagnosis = self.measures.diagnosis
        return diagnosis.part if diagnosis is not None and diagnosis.saturated else ""

    @property
    def divisible(self) -> bool:
        """Whether a shard could be divided: by its simulator, and without cutting a group."""
        plan = self.plan
        return (
            plan is not None
            and self.simulator not in VECTORISED_SIMULATORS
            and plan.envs_per_shard > plan.group_size
        )

    @property
    def more_shards(self) -> int | None:
        """Shards per env worker that would be the next to try; None where they are not to be split."""
        if self.plan is None or not self.on("rollout") or not self.divisible:
            return None
        most = self.plan.total_envs // self.plan.env_workers // self.plan.group_size
        now = self.plan.shards_per_worker
        return next((shards for shards in range(2 * now, most + 1) if self.plan.fits(shards)), None)


Rule = Callable[[Facts], Advice | None]
"""Says what to change, or nothing where the numbers do not ask for it."""


def _plan(plain: Any) -> ShardPlan | None:
    try:
        return ShardPlan(**plain) if isinstance(plain, dict) else None
    except (TypeError, ValueError):
        return None


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
