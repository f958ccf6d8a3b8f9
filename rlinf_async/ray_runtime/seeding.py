"""Chance in a worker process."""

from __future__ import annotations

import random

import numpy as np
import torch

SEED_STRIDE = 15_485_863
"""Distance between the seeds of two versions: a prime that no number of ranks reaches."""


def seed_everything(seed: int) -> None:
    """Seed what models sample with: those that match flows draw the denoise step from `random`."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_version(seed: int, version: int) -> None:
    """Seed what is sampled by, or from, one version of the policy: whatever was sampled before it."""
    seed_everything((seed + SEED_STRIDE * version) % 2**32)
