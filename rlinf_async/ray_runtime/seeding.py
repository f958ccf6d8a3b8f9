"""Chance in a worker process."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed what models sample with: those that match flows draw the denoise step from `random`."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
