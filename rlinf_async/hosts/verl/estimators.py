"""veRL's `algorithm.adv_estimator`, by what each needs to see; known without importing veRL."""

from __future__ import annotations

WITH_VALUES = frozenset({"gae"})
"""Estimators that need the policy's values."""

WITHIN_GROUPS = frozenset({"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo"})
"""Estimators that compare the members of a group only, and groups never cross a piece."""

WHITENED = frozenset({"reinforce_plus_plus_baseline"})
"""Estimators that compare the members of a group, and normalise that over the batch."""

COMPARING = WITHIN_GROUPS | WHITENED | {"gpg"}
"""Estimators that compare the members of a group, of which one alone has no advantage."""

REFUSED = {
    "remax": "it needs a second, greedy rollout of every start",
    "gdpo": "it needs several rewards of one trajectory",
    "optimal_token_baseline": "it needs the gradients of tokens",
    "tir_optimal_token_baseline": "it needs the gradients of tokens",
}
"""Estimators that need what is not there, and what that is."""

NAMES = tuple(sorted({*WITH_VALUES, *COMPARING, *REFUSED, "reinforce_plus_plus"}))
"""All that veRL has; a package of the user's may register others."""


def streams(name: str) -> bool:
    """Whether level 3 can estimate advantages before the batch is complete."""
    return name in WITH_VALUES or name in WITHIN_GROUPS


def normalizes(name: str) -> bool:
    """Whether advantages depend on the whole batch: all others but those of groups may."""
    return name not in WITHIN_GROUPS
