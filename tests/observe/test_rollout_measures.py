"""Metrics of rollouts, against numpy."""

import numpy as np
import pytest
import torch

from rlinf_async.observe.rollout_measures import of_rollouts


def test_means_and_extremes_are_of_the_valid_decisions_of_all_rollouts():
    draw = torch.Generator().manual_seed(0)
    rollouts = [
        {name: torch.randn(3, size, generator=draw) for name in ("rewards", "advantages", "returns")}
        | {"valid": torch.rand(3, size, generator=draw) < 0.6}
        for size in (2, 5)
    ]
    valid = np.concatenate([one["valid"].numpy().ravel() for one in rollouts])
    found = of_rollouts(rollouts)
    for name in ("rewards", "advantages", "returns"):
        values = np.concatenate([one[name].numpy().ravel() for one in rollouts])[valid]
        expected = {"rewards": values.mean()} if name == "rewards" else {}
        if name != "rewards":
            expected = {
                f"{name}_mean": values.mean(),
                f"{name}_max": values.max(),
                f"{name}_min": values.min(),
            }
        for each, value in expected.items():
            assert found.pop(each) == pytest.approx(value, rel=1e-5)
    assert not found
