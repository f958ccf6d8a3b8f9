"""The check of the weight of flow policies, and the experiment on it."""

import pytest
import torch

from benchmarks.learning import flow, flow_weight
from benchmarks.learning.flow import Run, report, runs, trained
from benchmarks.learning.flow_policy import FEW, Chain, FlowPolicy, transition
from benchmarks.learning.flow_weight import Flow, found
from rlinf_async.core.scored import WHOLE


@pytest.fixture
def few_samples(monkeypatch):
    monkeypatch.setattr(flow_weight, "SAMPLES", 40_000)


@pytest.mark.parametrize(("steps", "noise", "recovered"), [(3, 0.5, 1.11), (5, 0.3, 1.04), (10, 0.5, 1.12)])
def test_one_step_recovers_its_share_and_made_up_for_the_move(few_samples, steps, noise, recovered):
    _, by_weight = found(Flow(steps, noise, joint=False, dimensions=1, shift=0.012))
    names = list(by_weight)
    assert by_weight["w"].action == pytest.approx(recovered / steps, abs=0.02)
    assert by_weight[names[-1]].action == pytest.approx(recovered, abs=0.06)
    assert by_weight[names[-2]].mean == pytest.approx(1.0, abs=0.003)


def test_the_sum_over_all_steps_is_exact_for_actions_and_gradients(few_samples):
    spread, by_weight = found(Flow(4, 0.12, joint=True, dimensions=35, shift=0.012))
    assert spread == pytest.approx(0.24, abs=0.02)
    assert by_weight["w"].action == pytest.approx(0.2, abs=0.02)
    assert by_weight["w^5"].action == pytest.approx(1.0, abs=0.05)
    assert by_weight["w^5"].gradient == pytest.approx(1.0, abs=0.05)
    assert by_weight["none"].gradient > 1.1


def test_a_power_of_one_step_makes_gradients_too_long_where_the_line_does_not(few_samples):
    _, by_weight = found(Flow(4, 0.5, joint=False, dimensions=35, shift=0.012))
    assert by_weight["w^4"].gradient > 2
    assert 0.8 < by_weight["1 + 4 (w - 1), 0 to 2"].gradient < 1
    assert by_weight["1 + 4 (w - 1), 0 to 2"].effective > 0.5


def test_a_sampled_step_is_scored_as_it_was_drawn():
    torch.manual_seed(0)
    policy = FEW.fresh_policy(16)
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
    monkeypatch.setattr(flow, "BATCHES", 4)
    found = trained(Run("few", arm, 1, 100))
    assert found["lag_seen"] == pytest.approx(0.75)
    assert len(found["success"]) == 4
    assert (found["weight"] == 1.0) == (arm == "none")


def test_every_arm_is_run_at_every_lag_seed_by_seed():
    planned = list(runs())
    assert len(planned) == 30 * 2 * (1 + 3 * len(flow.ARMS))
    assert [run.seed for run in planned] == sorted(run.seed for run in planned)
    assert flow.ARMS["w"] is WHOLE


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
