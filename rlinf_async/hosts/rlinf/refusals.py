"""RLinf features that an asynchronous level cannot serve, named before Ray starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import LEVELS, AsyncConfig
from rlinf_async.core.nested import lookup
from rlinf_async.hosts.rlinf.reasons import Reason
from rlinf_async.hosts.rlinf.settings import LOSSES

SELF_SCORING_MODELS = frozenset({"gr00t", "gr00t_n1d6", "gr00t_n1d7", "abot_m0"})
"""Models that replace the stored log-probabilities by their own during training."""


def _always(asynchrony: AsyncConfig) -> bool:
    return True


@dataclass(frozen=True)
class Refusal:
    """A setting, the levels that cannot serve it, and what to do instead."""

    key: str
    unless: Callable[[Any], bool]
    levels: tuple[str, ...]
    mend: str
    override: str = ""
    """`mend` as a Hydra override, where it is one."""
    where: Callable[[AsyncConfig], bool] = _always
    """The runs with one of `levels` on that it concerns."""

    def says(self, value: Any) -> str:
        """That it does not support the setting, and the mend; whoever it is comes before."""
        return f"does not support {self.key}={value!r}; {self.mend}"


def _off(value: Any) -> bool:
    return not value


def _false(key: str, why: str, levels: tuple[str, ...] = LEVELS) -> Refusal:
    return Refusal(key, _off, levels, f"set it to false: {why}", f"{key}=false")


def _absent(key: str, why: str) -> Refusal:
    return Refusal(key, _off, LEVELS, f"remove it: {why}", f"~{key}")


REFUSALS = (
    _false("reward.use_reward_model", "rewards come from the simulator"),
    _absent("runner.use_training_pipeline", "async.streamer takes its place"),
    _absent("runner.enable_decoupled_mode", "async.rollout takes its place"),
    _absent("runner.overlap_env_bootstrap", "shards already reset while others work"),
    _false("rollout.collect_transitions", "only on-policy losses are supported"),
    Refusal(
        "rollout.collect_prev_infos",
        lambda value: value in (None, True),
        LEVELS,
        "set it to true: the learner needs what the policy thought of its actions",
        "rollout.collect_prev_infos=true",
    ),
    _absent("rollout.expert_model", "DAgger is not supported"),
    _false("cluster.profiling.enabled", "profiling opens windows per synchronous step"),
    Refusal(
        "runner.weight_sync_interval",
        lambda value: value in (None, 1),
        ("train",),
        "set it to 1: staleness is bounded by async.train.max_staleness",
        "runner.weight_sync_interval=1",
    ),
    Refusal(
        "actor.model.model_type",
        lambda model: model not in SELF_SCORING_MODELS,
        ("train",),
        "it scores old actions anew while it trains, which nothing can correct: "
        "async.train.enabled=false, levels 2 and 3 work",
        "async.train.enabled=false",
        where=lambda asynchrony: asynchrony.off_policy,
    ),
)


def unsupported(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> dict[Refusal, tuple[str, ...]]:
    """What levels that are on do not support of `cfg` (plain data), and which of them."""
    found = {}
    for refusal in REFUSALS:
        levels = tuple(level for level in refusal.levels if asynchrony.levels[level])
        if levels and refusal.where(asynchrony) and not refusal.unless(lookup(cfg, refusal.key)):
            found[refusal] = levels
    return found


def contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """What no level supports, and settings of the `async` block that do not go with `cfg`."""
    loss, advantage = lookup(cfg, "algorithm.loss_type"), lookup(cfg, "algorithm.adv_type")
    if loss not in LOSSES:
        yield Reason(
            f"algorithm.loss_type={loss!r} has no off-policy correction; asynchronous runs support "
            f"{', '.join(LOSSES)}, or async.mode=off"
        )
    backend = lookup(cfg, "actor.training_backend")
    if backend not in (None, "fsdp"):
        yield Reason(f"actor.training_backend={backend!r} is not supported; use fsdp, or async.mode=off")
    if asynchrony.correction == "vtrace" and advantage != "gae":
        yield Reason(
            "async.train.correction=vtrace estimates advantages with a critic, which algorithm.adv_type="
            f"{advantage!r} has not; use correction=decoupled or tis",
            "async.train.correction=decoupled",
        )
    interval = lookup(cfg, "runner.val_check_interval") or -1
    if asynchrony.deterministic and interval > 0:
        yield Reason(
            f"async.deterministic does not support runner.val_check_interval={interval}: evaluation draws "
            "from the generator that samples rollouts; set it to -1 and evaluate checkpoints",
            "runner.val_check_interval=-1",
        )
