"""Fixed mean and standard deviation to normalise simulator states."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlinf_async.observe.files import write_whole

SMALLEST_STD = 0.01
"""Floor of the standard deviation, so that a coordinate that never moved in the data stays near zero."""


@dataclass(frozen=True)
class ObservationStats:
    """Per-coordinate mean and standard deviation, both float32 of shape [state_dim].

    They are constants of a run: behaviour cloning computes them once, and every simulator and every
    policy version of the run uses the same numbers.
    """

    mean: np.ndarray
    std: np.ndarray

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.std.shape:
            raise ValueError(f"mean {self.mean.shape} and std {self.std.shape} must share one axis")
        if not (self.std > 0).all():
            raise ValueError(f"std must be positive, got a minimum of {self.std.min()}")

    @classmethod
    def of(cls, states: np.ndarray) -> "ObservationStats":
        """Return the statistics of `states` [samples, state_dim]."""
        std = np.maximum(states.std(axis=0), SMALLEST_STD)
        return cls(mean=states.mean(axis=0).astype(np.float32), std=std.astype(np.float32))

    @classmethod
    def load(cls, path: Path) -> "ObservationStats":
        with np.load(path) as file:
            return cls(mean=file["mean"], std=file["std"])

    def save(self, path: Path) -> None:
        content = io.BytesIO()
        np.savez(content, mean=self.mean, std=self.std)
        write_whole(path, content.getbuffer(), private=False)

    def normalise(self, states: np.ndarray) -> np.ndarray:
        """Return `states` [..., state_dim] with zero mean and unit deviation, as float32."""
        return ((states - self.mean) / self.std).astype(np.float32)
