"""The experiment on the weight of flow policies."""

import pytest
import torch

from benchmarks.learning import flow
from benchmarks.learning.flow import Run, report, runs, trained
from benchmarks.learning.flow_policy import FEW_TOY, Chain, FlowPolicy, transition
from rlinf_async.core.scores import WHOLE


def test_a_sampled_step_is_scored_as_it_was_drawn():
    torch.manual_seed(0)
    policy = FEW_TOY.fresh_policy(16)
    assert isinstance(policy, FlowPolicy)
    states, noise = torch.randn(64, 2), torch.randn(64, 7)
    chain = Chain.unpacked(policy.sample(states, noise))
    assert set(chain.step.tolist()) == {0, 1, 2, 3}
    mean, deviation = transition(
        chain.before,
        policy.velocity(states, chain.before, 1 - chain.step / 4),
        chain.step,
        noisy=torch.ones(64, dtype=torch.bool),
    )
    shock = noise[:, 2:4]
    assert torch.allclose((chain.behind - mean) / deviation, shock, atol=1e-4)
    expected = torch.distributions.Normal(0, 1).log_prob(shock).sum(dim=1) - 2 * deviation[:, 0].log()
    assert torch.allclose(policy.logprobs(states, chain.packed()), expected, atol=1e-3)


@pytest.mark.parametrize("arm", ["none", "capped"])
def test_a_run_has_its_lag_and_its_weights(monkeypatch, arm):
    monkeypatch.setattr(flow, "BATCH_COUNT", 4)
    found = trained(Run("few", arm, 1, 100))
    assert found["lag_seen"] == pytest.approx(0.75)
    assert len(found["success"]) == 4
    assert (found["weight"] == 1.0) == (arm == "none")


def test_every_arm_is_run_at_every_lag_seed_by_seed():
    planned = list(runs())
    assert len(planned) == 30 * 2 * (1 + 3 * len(flow.SCORED_BY_ARM))
    assert [run.seed for run in planned] == sorted(run.seed for run in planned)
    assert flow.SCORED_BY_ARM["w"] is WHOLE


def test_the_report_is_of_complete_seeds_and_tests_what_was_stated():
    gain = {"none": -0.1, "w": 0.0, "new": 0.0, "capped": 0.05, "power": 0.0, "synchronous": 0.02}
    rows = {
        run: {"success": [0.3, 0.6 + gain[run.arm] + 0.001 * run.seed, 0.9], "kl": 0.1, "weight": 1.0}
        for run in runs(range(3))
    }
    del rows[Run("many", "w", 4, 2)]
    text = report(rows)
    assert "`few`, 3 of 30 seeds" in text
    assert "`many`, 2 of 30 seeds" in text
    assert "| few | +" in text
    assert "| many | +" in text
    assert text.count("different") == 2
