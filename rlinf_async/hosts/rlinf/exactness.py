"""Whether each level computes what the synchronous loop would, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.hosts.explanation import EXACT, train_exactness
from rlinf_async.hosts.rlinf.settings import RLinfSettings

FLOW_MATCHING = frozenset(
    {"openpi", "gr00t", "gr00t_n1d6", "gr00t_n1d7", "abot_m0", "dexbotic_pi", "dexbotic_dm0", "lingbotvla"}
)
"""Models that draw one denoise step for a whole forward pass, unless their log-probabilities are joint."""


def exactness(cfg: Mapping[str, Any], settings: RLinfSettings) -> dict[str, str]:
    """`exact`, `approximate (why; mend)` or `off`, for each level."""
    return {
        "train": train_exactness(settings.asynchrony),
        "rollout": _rollout(cfg, settings),
        "streamer": _streamer(cfg, settings),
    }


def _rollout(cfg: Mapping[str, Any], settings: RLinfSettings) -> str:
    if not settings.asynchrony.rollout.enabled:
        return "off"
    model = str(cfg["actor"]["model"]["model_type"])
    shares = "; samples of one forward pass share a denoise step" if model in FLOW_MATCHING else ""
    return (
        f"{EXACT} (the same trajectories in distribution; random numbers are drawn in another order{shares})"
    )


def _streamer(cfg: Mapping[str, Any], settings: RLinfSettings) -> str:
    if not settings.asynchrony.streamer.enabled:
        return "off"
    reasons = _streaming_reasons(cfg, settings) if settings.streams else []
    if reasons:
        return f"approximate ({'; '.join(reasons)})"
    if not settings.streams:
        return f"{EXACT} (normalization is deferred: the learner waits for the whole batch before it steps)"
    if settings.spreads_steps:
        return f"{EXACT} (every optimizer step has an equal share of every rollout, drawn at random)"
    return f"{EXACT} (one optimizer step per pass over the batch, sums divided once)"


def _streaming_reasons(cfg: Mapping[str, Any], settings: RLinfSettings) -> list[str]:
    algorithm, train = cfg["algorithm"], cfg["env"]["train"]
    reasons = []
    if settings.advantage == "gae":
        reasons.append(
            "advantages are normalised by the batch before; async.streamer.normalization=deferred is exact"
        )
    if settings.steps_while_streaming:
        reasons.append(
            f"the {settings.optimizer_steps} optimizer steps of the first pass are cut in order of arrival; "
            f"async.streamer.steps=spread or actor.global_batch_size={settings.samples_per_batch} is exact"
        )
    masked = not train.get("auto_reset") and not train.get("ignore_terminations")
    if algorithm.get("entropy_bonus", 0) and masked:
        reasons.append("the entropy bonus is a mean over the valid samples of each micro-batch")
    if algorithm.get("filter_rewards", False) and not masked:
        reasons.append("filtered losses are means over the valid samples of each micro-batch")
    return reasons
