"""A scenario of the bench that takes seconds, and what is measured of each of its runs under any host."""

from dataclasses import replace
from typing import Any

import pytest

from rlinf_async.lab.bench import cell
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME, PolicyService
from rlinf_async.lab.emulated.service import EnvService

QUICK = replace(
    SCENARIOS_BY_NAME["libero"],
    env=EnvService(decision_s=0.01, cv=0.3, reset_s=0.01),
    policy=PolicyService(act_fixed_s=0.001, act_sample_s=0.0, train_sample_s=0.001, weights_mb=1.0),
    envs=8,
    decisions=4,
    micro_batch_size=8,
)


def check_a_run_is_measured(monkeypatch: pytest.MonkeyPatch, *, staleness: int, **asked: Any) -> None:
    """Run `QUICK` in the mode, and under the host, that is `asked` for."""
    monkeypatch.setitem(cell.SCENARIOS_BY_NAME, "quick", QUICK)
    result = BenchCell(scenario="quick", repetition=0, warm_up=3, steps=4, **asked).run()
    assert "error" not in result, result["error"]
    assert result["fresh_steps_per_s"] > 0
    assert 0 < result["overlap_efficiency"] <= result["own_efficiency"] < 1
    learner_s = QUICK.samples * QUICK.update_epoch * QUICK.policy.train_sample_s
    assert result["bounds_s"]["learner"] == pytest.approx(learner_s)
    assert result["own_bounds_s"]["learner"] >= learner_s
    assert result["cpu_ms"] > 0
    assert result["staleness_max"] <= staleness
    if asked["mode"] == "full":
        assert result["retrained"] == 0
        assert 1 <= result["batch_size"] < QUICK.envs
