"""Tells for each level whether a run computes the same as RLinf's synchronous loop, and if not, why; and
which members of a group start alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.exactness import rollout_exactness, streamer_exactness, train_exactness
from rlinf_async.hosts.judge.reasons import Reason, override_reason
from rlinf_async.hosts.rlinf import nft
from rlinf_async.hosts.rlinf.distillation import WHOLE_BATCH
from rlinf_async.hosts.rlinf.episode_starts import has_stock_scenes
from rlinf_async.hosts.rlinf.left_out import MEAN_OVERRIDE, is_summed
from rlinf_async.hosts.rlinf.models import shared_chance
from rlinf_async.hosts.rlinf.sources import sources_of
from rlinf_async.hosts.rlinf.view import RLinfView

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.run_settings import RLinfSettings


def exactness(view: RLinfView, settings: RLinfSettings) -> dict[str, str]:
    """Return `exact`, `approximate (why; the exact setting)` or `off` for each level."""
    lags = settings.asynchrony.off_policy and not settings.has_ratio
    return {
        "train": nft.train_exactness(view.cfg, settings.asynchrony)
        if lags
        else train_exactness(settings.asynchrony),
        "rollout": rollout_exactness(
            settings.asynchrony,
            model=str(view.model_type),
            shares=shared_chance(view.cfg),
        ),
        "streamer": streamer_exactness(
            settings,
            deferred=_why_whole(settings),
            more=list(_means_of_micro_batches(view)),
        ),
    }


def _why_whole(settings: RLinfSettings) -> str:
    """Return the reason why the learner waits for the whole batch, if it does."""
    if settings.distils:
        return WHOLE_BATCH
    return "normalization is deferred" if settings.has_ratio else nft.WAITS


def _means_of_micro_batches(view: RLinfView) -> Iterator[str]:
    """Yield the parts of RLinf's loss that are means over a micro-batch, not over the batch."""
    yield from bonus_parts(view)
    if view.filters_rewards and view.unmasking_keys:
        yield "filtered losses are means over the valid samples of each micro-batch"


METAWORLD_SIMULATORS = "rlinf.envs.metaworld.venv:ReconfigureSubprocEnv"
PATCHED_METHOD = "reset_trials"
"""The method that `patches/rlinf/0013` adds to the simulators, which gives each one its trial."""


def starts_of_their_own(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[str]:
    """Yield remarks on RLinf's simulators with different starts in a group, or in repetitions of a run."""
    train = cfg["env"]["train"]
    group_size = int(train.get("group_size", 1))
    if has_stock_scenes(train) and group_size > 1 and not asynchrony.advanced.shared_group_scene:
        yield (
            f"RLinf's LIBERO seeds each simulator by its number: members of a group (env.train.group_size="
            f"{group_size}) have one task and one initial state, and some tasks' cabinets, stoves and racks "
            "stand elsewhere for each; async.advanced.shared_group_scene=true gives a group one scene"
        )
    if train.get("env_type") != "metaworld" or train.get("env_class"):
        return
    if PATCHED_METHOD in sources_of("rlinf").members(METAWORLD_SIMULATORS):
        return
    why = "RLinf's Meta-World draws where an episode begins for each environment, without a seed"
    remedy = "patches/rlinf/0013 gives each its trial"
    if group_size > 1:
        yield (
            f"{why}: members of a group (env.train.group_size={group_size}) do not begin alike, and "
            f"their rewards are compared as if they did; {remedy}"
        )
    if asynchrony.deterministic:
        yield f"{why}: two runs differ in spite of async.deterministic=true; {remedy}"


def scene_reasons(train: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason if members of a group are to share a scene, and `train` has none."""
    if asynchrony.advanced.shared_group_scene and not has_stock_scenes(train):
        auto_reset = ", and env.train.auto_reset=true" if train.get("auto_reset") else ""
        yield override_reason(
            "async.advanced.shared_group_scene=true does not go with env.train.env_type="
            f"{train.get('env_type')}{auto_reset}: scenes of LIBERO alone are drawn from a seed, at resets "
            "of whole shards",
            "async.advanced.shared_group_scene=false",
        )


def bonus_parts(view: RLinfView) -> Iterator[str]:
    """Yield the reason why the entropy bonus depends on the division into micro-batches."""
    if not view.entropy_bonus or view.unmasking_keys:
        return
    if is_summed(view):
        yield "the entropy bonus is a sum over all samples of each micro-batch that has a valid one"
    else:
        yield "the entropy bonus is a mean over the valid samples of each micro-batch"


def bonus_remarks(view: RLinfView) -> Iterator[str]:
    """Yield a remark if the entropy bonus is a sum over a micro-batch, though it looks like a mean."""
    if is_summed(view):
        size = view.micro_batch_size
        yield (
            "algorithm.entropy_type=chunk_level with masked episodes: RLinf's entropy bonus is a sum over a "
            f"micro-batch, so that its weight grows with actor.micro_batch_size={size}; {MEAN_OVERRIDE} "
            "is a mean"
        )
