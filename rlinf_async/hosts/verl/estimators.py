"""veRL's `algorithm.adv_estimator`, by what each needs to see; known without importing veRL."""

from __future__ import annotations

WITH_VALUES = frozenset({"gae"})
"""Estimators that need the policy's values."""

WITHIN_GROUPS = frozenset({"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo"})
"""Estimators that compare the members of a group only, and groups never cross a piece."""

WHITENED_ESTIMATORS = frozenset({"reinforce_plus_plus_baseline"})
"""Estimators that compare the members of a group, and normalise the result over the batch."""

COMPARING_ESTIMATORS = WITHIN_GROUPS | WHITENED_ESTIMATORS | {"gpg"}
"""Estimators that compare the members of a group; a member alone has no advantage."""

REFUSED_ESTIMATORS = {
    "remax": "it needs a second, greedy rollout of every start",
    "gdpo": "it needs several rewards of one trajectory",
    "optimal_token_baseline": "it needs the gradients of tokens",
    "tir_optimal_token_baseline": "it needs the gradients of tokens",
}
"""Estimators that need something that a run of policies lacks, and what they need."""

ESTIMATOR_NAMES = tuple(
    sorted({*WITH_VALUES, *COMPARING_ESTIMATORS, *REFUSED_ESTIMATORS, "reinforce_plus_plus"})
)
"""All estimators of veRL's; a package of the user's may register others."""


def streams(name: str) -> bool:
    """Return True if level 3 can estimate advantages before the batch is complete."""
    return name in WITH_VALUES or name in WITHIN_GROUPS


def normalizes(name: str) -> bool:
    """Return True if advantages depend on the whole batch: those of all estimators but the group ones may."""
    return name not in WITHIN_GROUPS
