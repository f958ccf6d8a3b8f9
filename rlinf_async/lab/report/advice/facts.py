"""The facts behind advice, and the parts of a piece of advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.simulators import AUTO_SHARDS, MOST_SHARDS
from rlinf_async.lab.report.advice.machine import Keys, Machine
from rlinf_async.lab.report.measures import Measures
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.observe.spans import kind_words

VERL_EPOCHS = "actor_rollout_ref.actor.ppo_epochs"
MIN_IDLE_CORES = 1.0
"""Fewest idle cores, on average, before advice adds a part that needs a core."""
BETWEEN_SHARE = 0.3
"""Above this share of a decision on the way between env worker and inference, shards wait for Python."""
MIN_MEAN_BATCH_SIZE = 1.5
"""Below this mean batch size most batches hold one request, and shards are already too small."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One setting to try, and the numbers that speak for it."""

    rule: str
    because: str
    setting: str
    before: str
    after: str
    but: str = ""
    """The price of the change."""

    @property
    def sentence(self) -> str:
        cost = f" ({self.but})" if self.but else ""
        return f"{self.because}. Change {self.setting} from {self.before} to {self.after}{cost}."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts behind advice: the measures of a run, and the settings that advice may change."""

    measures: Measures
    machine: Machine
    keys: Keys
    levels: Mapping[str, bool]
    plan: ShardPlan | None
    max_staleness: int
    max_batch_size: int | None
    max_wait_s: float
    update_epoch: int
    """Passes over a batch; 0 where it is unknown."""
    advantage: str
    deterministic: bool
    corrects: bool
    proximal: str
    normalization: str
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
            machine=Machine.of(run),
            keys=(keys := Keys.of(setting)),
            levels=levels if isinstance(levels, dict) else {},
            plan=_plan(facts.get("plan")),
            max_staleness=bound,
            max_batch_size=_whole(facts.get("max_batch_size"), 0) or None,
            max_wait_s=facts["max_wait_s"] if isinstance(facts.get("max_wait_s"), int | float) else 0.0,
            update_epoch=_whole(setting("algorithm.update_epoch", setting(VERL_EPOCHS)), 1),
            advantage=str(setting("algorithm.adv_type", setting("algorithm.adv_estimator", ""))),
            deterministic=setting("async.deterministic", False) is True,
            corrects=bound > 0 and setting("async.train.correction", "decoupled") != "none",
            proximal=str(setting("async.advanced.proximal", "recomputed")),
            normalization=str(setting("async.advanced.normalization", "auto")),
            weight_syncer=str(setting("weight_syncer.type", "bucket")),
            bucket_dtype=setting("weight_syncer.bucket.bucket_dtype"),
            precision=str(setting("actor.model.precision", "")),
            evaluates_every=_whole(setting(keys.evaluation), -1),
            saves_every=_whole(setting(keys.saving), -1),
        )

    def off(self, level: str) -> bool:
        return self.levels.get(level) is False

    def on(self, level: str) -> bool:
        return self.levels.get(level) is True

    def waits(self, part: str, kind: str) -> float:
        """The share of the time that the mean shard or rank spends on a kind of span."""
        return self.measures.share(part, kind_words(kind))

    @property
    def bound(self) -> str:
        """The part that is busy nearly all the time, or "" without one."""
        diagnosis = self.measures.diagnosis
        return diagnosis.part if diagnosis is not None and diagnosis.saturated else ""

    @property
    def idle_cores(self) -> float | None:
        """Processor cores that the run and other work left idle; None where that is unknown."""
        load = self.measures.load
        if load is not None:
            return max(0.0, load.cores - load.own - load.others)
        return self.machine.idle_cores(self.plan, self.measures)

    @property
    def has_idle_core(self) -> bool:
        """True if there is a core for one more simulator, or for one more rank on the CPU."""
        return (self.idle_cores or 0.0) >= MIN_IDLE_CORES

    @property
    def has_room_for_a_rank(self) -> bool:
        """True if one more rank may fit; the records hold no facts about accelerators."""
        return self.has_idle_core or not self.machine.on_cpu

    @property
    def room(self) -> str:
        """The words for the resource that one more rank takes."""
        return (
            "as far as there are processor cores"
            if self.machine.on_cpu
            else "as far as there are accelerators"
        )

    @property
    def divisible(self) -> bool:
        """True if a shard could be divided: by its simulator, and without cutting a group."""
        plan = self.plan
        return (
            plan is not None
            and self.machine.simulators != "accelerator"
            and plan.envs_per_shard > plan.group_size
        )

    @property
    def between_share(self) -> float:
        """The share of a shard's decision in which it neither steps, nor waits in the queue of inference or
        for a forward pass: its request and answer are on their way, or wait for the env worker's Python.

        At least that much: the queue's time is that of the oldest request of each batch.
        """
        measures, asks = self.measures, self.waits("env", "ask")
        if not measures.ask_s or measures.queued_s is None or measures.forward_s is None or not asks:
            return 0.0
        between = max(0.0, 1.0 - (measures.queued_s + measures.forward_s) / measures.ask_s)
        return between * asks / (asks + self.waits("env", "step"))

    @property
    def fewer_shards(self) -> int | None:
        """The number of shards per env worker that would keep the worker's Python busy; None if the present
        ones leave it time.

        While requests wait for one interpreter, a decision lasts as long as the interpreter works for one
        decision of every shard. So many shards are enough as decisions without that wait fit into this time.
        """
        plan = self.plan
        if plan is None or plan.shards_per_worker <= AUTO_SHARDS or self.between_share < BETWEEN_SHARE:
            return None
        enough = int(plan.shards_per_worker * (1.0 - self.between_share))
        return next((n for n in range(max(enough, AUTO_SHARDS), AUTO_SHARDS - 1, -1) if plan.fits(n)), None)

    @property
    def more_shards(self) -> int | None:
        """The next number of shards per env worker to try; None if shards should not be split.

        Simulators in their worker's process take turns, so that more than two shards gain nothing there; all
        other simulators need a core for the additional shard that steps at the same time.
        """
        plan = self.plan
        if plan is None or not self.on("rollout") or not self.divisible or not self.has_idle_core:
            return None
        if (self.measures.batch_size or 0.0) < MIN_MEAN_BATCH_SIZE or self.fewer_shards is not None:
            return None
        apart = self.machine.simulators == "processes"
        most = min(
            plan.total_envs // plan.env_workers // plan.group_size, MOST_SHARDS if apart else AUTO_SHARDS
        )
        return next((n for n in range(2 * plan.shards_per_worker, most + 1) if plan.fits(n)), None)


Rule = Callable[[Facts], Advice | None]
"""Returns advice, or None if the numbers give no reason for it."""


def _plan(plain: object) -> ShardPlan | None:
    try:
        return ShardPlan(**plain) if isinstance(plain, dict) else None
    except (TypeError, ValueError):
        return None


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
