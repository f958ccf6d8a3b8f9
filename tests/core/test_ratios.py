import math

import numpy as np
import pytest
import torch

from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import RatioProbe, averages
from rlinf_async.core.scores import Scored


class Policy:
    """Its log-probability of every action is its only weight."""

    def __init__(self, weight=0.0):
        self.weight = torch.tensor([weight])
        self.asked = []

    def score(self, inputs):
        self.asked.append(len(inputs["x"]))
        return self.weight * inputs["x"], inputs["mu"]


class Measured(RatioProbe):
    """Measures a policy, whose weights it remembers where a batch begins."""

    def __init__(self, *, max_staleness=2, **options):
        self.policy = Policy()
        self.past = PastWeights(lambda: [self.policy.weight], keep=max_staleness + 1)
        super().__init__(
            self.past, lambda inputs: self.policy.score(inputs), max_staleness=max_staleness, **options
        )

    def begin(self, batch):
        self.past.remember(batch)
        super().begin(batch)

    def feed(self, *staleness, mu=0.25):
        size = len(staleness)
        self.add({"x": torch.ones(size), "mu": torch.full((size,), mu)}, torch.tensor(staleness))

    def train(self, batch, weight, *staleness):
        """One batch that is trained by the policy of `weight`."""
        self.policy.weight.fill_(weight)
        self.begin(batch)
        self.feed(*staleness)
        return self.finish()


def test_the_factor_of_the_sampler_and_the_factor_of_the_updates_multiply_to_the_weight():
    probe = Measured()
    probe.train(0, 0.5, 0)
    probe.train(1, 0.75, 0)
    metrics = averages(probe.train(2, 1.5, 0, 1, 2))
    mu = 0.25
    for lag, acted in ((0, 1.5), (1, 0.75), (2, 0.5)):
        assert metrics[f"mismatch/lag_{lag}/ratio"] == pytest.approx(np.exp(acted - mu), rel=1e-5)
        assert metrics[f"mismatch/lag_{lag}/abs_log"] == pytest.approx(acted - mu)
    for lag, acted in ((1, 0.75), (2, 0.5)):
        gap = 1.5 - acted
        assert metrics[f"staleness/lag_{lag}/ratio"] == pytest.approx(np.exp(gap), rel=1e-5)
        assert metrics[f"staleness/lag_{lag}/kl"] == pytest.approx(np.exp(gap) - 1 - gap, rel=1e-5)
    assert "staleness/lag_0/ratio" not in metrics


def test_what_is_scored_in_part_is_measured_as_far_as_the_action_has_moved():
    probe = Measured()
    probe.train(0, 0.5, 0)
    probe.policy.weight.fill_(0.6)
    probe.begin(1)
    probe.feed(0, 1)
    metrics = averages(probe.finish(Scored(steps=4)))
    gap = 0.1
    assert metrics["staleness/lag_1/kl"] == pytest.approx(16 * (np.exp(gap) - 1 - gap), rel=1e-4)
    assert metrics["staleness/lag_1/abs_log"] == pytest.approx(4 * gap, rel=1e-5)
    assert metrics["staleness/lag_1/ratio"] == pytest.approx(1 + 4 * (np.exp(gap) - 1), rel=1e-5)


def test_a_staleness_that_no_sample_has_is_not_reported():
    probe = Measured()
    probe.train(0, 0.5, 0)
    assert {name.split("/")[1] for name in averages(probe.train(1, 0.5, 0))} == {"lag_0"}


def test_ranks_that_hold_different_samples_make_equally_many_forward_passes_and_name_the_same_sums():
    passes, names = [], []
    for lags in ((0, 0, 0), (1,), (0, 1, 2)):
        probe = Measured()
        for batch in range(3):
            sums = probe.train(batch, float(batch), *lags)
        passes.append(len(probe.policy.asked))
        names.append(list(sums))
    assert len(set(passes)) == 1
    assert names[0] == names[1] == names[2]


def test_a_rank_without_samples_of_a_staleness_counts_nothing_whatever_its_spare_sample_gives():
    probe = Measured()
    probe.train(0, 0.5, 0)
    sums = probe.train(1, math.nan, 0)
    assert math.isnan(sums["mismatch/lag_0/ratio"])
    assert {value for name, value in sums.items() if "/lag_0/" not in name} == {0.0}


def test_sums_of_ranks_add_up_to_the_mean_over_all_their_samples():
    sums = [Measured().train(0, 1.0, 0), Measured().train(0, 2.0, 0, 0, 0)]
    total = {name: sums[0][name] + sums[1][name] for name in sums[0]}
    assert averages(total)["mismatch/lag_0/abs_log"] == pytest.approx((0.75 + 3 * 1.75) / 4)


def test_a_batch_is_measured_on_a_few_samples_only():
    probe = Measured(size=4)
    probe.begin(0)
    for _ in range(3):
        probe.feed(0, 0, 0)
    probe.finish()
    assert max(probe.policy.asked) == 4


def test_every_sample_of_a_batch_is_as_likely_to_be_measured():
    probe, counts = Measured(size=8, max_staleness=0), np.zeros(40)

    def score(inputs):
        counts[inputs["x"].long()] += 1
        return torch.zeros(len(inputs["x"])), torch.zeros(len(inputs["x"]))

    probe.policy.score = score
    for batch in range(400):
        probe.begin(batch)
        for start in (0, 10, 30):  # pieces of 10, 20 and 10 samples, each in the order of time
            x = torch.arange(start, {0: 10, 10: 30, 30: 40}[start]).float()
            probe.add({"x": x}, torch.zeros(len(x), dtype=torch.long))
        probe.finish()
    assert counts.sum() == 400 * 8
    # 400 draws at 1 in 5: 80 each, with a deviation of 8.
    assert counts.min() > 80 - 5 * 8
    assert counts.max() < 80 + 5 * 8


def test_a_proximal_policy_that_is_known_is_not_asked_again():
    probe = Measured()
    probe.train(0, 0.5, 0)
    probe.policy.weight.fill_(0.75)
    probe.begin(1)
    probe.policy.asked.clear()
    known = torch.full((3,), 0.75), torch.full((3,), 0.25)
    probe.add({"x": torch.ones(3), "mu": torch.zeros(3)}, torch.tensor([0, 1, 1]), known)
    metrics = averages(probe.finish())
    assert probe.policy.asked == [2]
    assert metrics["mismatch/lag_0/abs_log"] == pytest.approx(0.5)
    assert metrics["mismatch/lag_1/abs_log"] == pytest.approx(0.25)
    assert metrics["staleness/lag_1/abs_log"] == pytest.approx(0.25)


def test_what_was_stored_may_come_of_scoring_alone():
    probe = Measured(max_staleness=1)
    probe.train(0, 0.5, 0)
    probe.policy.weight.fill_(0.75)
    probe.begin(1)
    drawn = torch.tensor([0.25, 0.5])
    probe.policy.score = lambda inputs: (probe.policy.weight * inputs["x"], drawn[inputs["step"]])
    probe.add({"x": torch.ones(2), "step": torch.tensor([0, 1])}, torch.tensor([0, 1]))
    metrics = averages(probe.finish())
    assert metrics["mismatch/lag_0/abs_log"] == pytest.approx(0.75 - 0.25)
    assert metrics["mismatch/lag_1/abs_log"] == pytest.approx(0.5 - 0.5)


def test_the_present_weights_are_those_of_the_next_batch_afterwards():
    probe = Measured()
    probe.train(4, 0.5, 0)
    assert probe.past.present == 5


def test_a_version_from_before_a_resume_is_left_out():
    probe = Measured()
    metrics = averages(probe.train(7, 1.0, 0, 1))
    assert {name.split("/")[:2][1] for name in metrics} == {"lag_0"}


def test_without_past_weights_there_is_the_mismatch_of_fresh_samples_alone():
    policy = Policy(0.5)
    probe = RatioProbe(None, policy.score, max_staleness=1)
    probe.begin(3)
    inputs = {"x": torch.ones(2), "mu": torch.full((2,), 0.25)}
    probe.add(inputs, torch.tensor([0, 1]), policy.score(inputs))
    policy.asked.clear()
    policy.weight.fill_(9.0)  # what the batch has made of it, which nobody scores by
    metrics = averages(probe.finish())
    assert {name.rpartition("/")[0] for name in metrics} == {"mismatch/lag_0"}
    assert metrics["mismatch/lag_0/abs_log"] == pytest.approx(0.5 - 0.25)
    assert not policy.asked


def test_the_error_of_the_interpolation_is_measured_before_and_after_the_updates():
    probe = Measured(interpolates=True)
    probe.train(0, 0.5, 0)
    probe.policy.weight.fill_(1.25)
    probe.begin(1)
    probe.feed(1)
    probe.policy.weight.fill_(3.25)
    probe.past.changed()
    metrics = averages(probe.finish())
    # Half way from mu (0.25) to the policy: of version 1 (1.25) before, and to the updated one after.
    assert metrics["proximal_error/before/lag_1/abs_log"] == pytest.approx(abs((0.25 + 1.25) / 2 - 1.25))
    assert metrics["proximal_error/after/lag_1/abs_log"] == pytest.approx(abs((0.25 + 3.25) / 2 - 1.25))


def test_each_staleness_has_room_for_as_many_samples_as_were_asked_for():
    probe = Measured(size=2)
    probe.begin(5)
    probe.feed(0, 1, 0)
    probe.feed(0, 1, 2)
    sums = probe.finish()
    assert sums["mismatch/lag_0/count"] == 2
    assert "mismatch/lag_3/count" not in sums
    assert probe.policy.asked == [2, 2, 1]


def test_samples_of_a_staleness_that_nobody_expects_are_not_measured():
    probe = Measured(max_staleness=1)
    probe.begin(5)
    probe.feed(0, 2, 2)
    assert not any("lag_2" in name for name in probe.finish())


def test_averages_leave_the_counts_out():
    found = averages({"mismatch/lag_0/count": 4.0, "mismatch/lag_0/ratio": 6.0, "staleness/lag_1/count": 0.0})
    assert found == {"mismatch/lag_0/ratio": 1.5}


def test_which_samples_are_measured_depends_on_the_batch_and_on_no_other_chance():
    def measured(batch):
        probe = Measured(size=3)
        probe.policy.weight.fill_(1.0)
        probe.begin(batch)
        inputs = {"x": torch.arange(50.0) / 10, "mu": torch.zeros(50)}
        probe.add(inputs, torch.zeros(50))
        return probe.finish()

    assert measured(0) == measured(0)
    assert measured(0) != measured(1)
