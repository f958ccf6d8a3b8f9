"""The sizes of `gaussian_mlp` and its number of parameters, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.lab.demo.policies.sizes import check_fields, settings_of

HIDDEN_UNITS = 256


@dataclass(frozen=True, kw_only=True)
class MLPSettings:
    """Sizes of the policy; without `add_value_head` it has no critic."""

    obs_dim: int
    action_dim: int
    num_action_chunks: int = 1
    add_value_head: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def parameters(self) -> int:
        """The number of parameters: a backbone, means and a standard deviation of each action, a critic."""
        outputs = self.num_action_chunks * self.action_dim
        layers = (self.obs_dim + 1) * HIDDEN_UNITS + 2 * (HIDDEN_UNITS + 1) * HIDDEN_UNITS
        return layers + (HIDDEN_UNITS + 2) * outputs + self.add_value_head * (layers + HIDDEN_UNITS)


def parameters(section: Mapping[str, Any]) -> int:
    """Return the number of parameters of a model section: an entry point of `rlinf_async.model_sizes`.

    Raises:
        TypeError, ValueError: as by `settings_of`.
    """
    return settings_of(MLPSettings, section).parameters
