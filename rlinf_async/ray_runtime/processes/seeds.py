"""The seeds of inference and learner ranks."""

from __future__ import annotations

import random

import numpy as np
import torch

SEED_STRIDE = 15_485_863
"""Distance between the seeds of two versions: a prime that no number of ranks reaches."""


def seed_everything(seed: int) -> None:
    """Seed all generators that models sample from: flow-matching models draw the denoise step from
    `random`.
    """
    seed %= 2**32  # numpy takes no seed of 2**32 or more
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


LEARNER_SEEDS = 1_000_003
"""Distance between the seeds of inference and learner ranks; larger than the number of either."""


def learner_seed(seed: int, rank: int) -> int:
    """Return the seed of a learner rank; no other process of a run with this `seed` has the same one."""
    return seed + LEARNER_SEEDS + 1 + rank


def seed_version(seed: int, version: int) -> None:
    """Seed all sampling of one policy version, whatever was sampled before."""
    seed_everything(seed + SEED_STRIDE * version)
