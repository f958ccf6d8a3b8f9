"""Samples without a gradient, left out of training in one process, beside training of all samples."""

import pytest
import torch

from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from tests.hosts.test_local_learner import ENVS, HORIZON, learner_of, opinionated, piece, policy, settings_of


def trained(skips, *, ends_at=0, equal=(), **changes):
    """The gradients of each step, the metrics, and the samples of each pass, with gradients and without."""
    block = {"mode": "full", "skip": {"masked": skips}}
    model, passes, score = opinionated(1), [], GaussianPolicy.score
    size = {"micro_batch_size": ENVS, "clip_grad": 1e9, **changes}
    learner = learner_of(settings_of(block, **size), model)
    gradients, step = [], learner.training._optimizer.step

    def noting():
        # GRPO has none of the critic.
        known = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        gradients.append(torch.cat(known))
        step()

    def counting(inputs):
        passes.append((torch.is_grad_enabled(), len(inputs["states"])))
        return score(model, inputs)

    learner.training._optimizer.step, model.score = noting, counting
    given = piece(policy(0), ends_at=ends_at)
    for env in equal:
        given.payload["rewards"][:, env] = 0.0
    learner.begin(0)
    learner.accept([given])
    metrics = learner.finish()
    sizes = {kind: [size for graded, size in passes if graded == kind] for kind in (True, False)}
    return gradients, metrics, sizes


@pytest.mark.parametrize("ends_at", [0, 2])
@pytest.mark.parametrize("weighting", ["sample", "episode"])
def test_masked_samples_are_in_no_pass_and_the_gradient_is_that_of_all_samples(weighting, ends_at):
    how = {"weighting": weighting, "ends_at": ends_at, "algorithm": "ppo", "global_batch_size": 12}
    expected, every, _ = trained(False, **how)
    found, metrics, sizes = trained(True, **how)
    masked = HORIZON - 1 - ends_at
    assert len(found) == len(expected) == 2
    # The second step begins at weights that the first has made.
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()
    assert (found[0] - expected[0]).norm() <= 1e-6 * expected[0].norm()
    assert sum(sizes[True]) == HORIZON * ENVS - masked
    # The anchor's pass is over the last observations, too, of episodes that go on.
    assert HORIZON * ENVS - masked + ENVS - 1 in sizes[False]
    assert metrics["async/skipped/samples"] == pytest.approx(masked / (HORIZON * ENVS))
    assert metrics["train/loss"] == pytest.approx(every["train/loss"], rel=1e-4)
    assert "async/skipped/samples" not in every


def test_groups_of_equal_rewards_are_in_no_pass_and_the_gradient_is_that_of_all_samples():
    how = {"algorithm": "grpo", "group_size": 2, "equal": (2, 3, 4, 5)}
    expected, _, _ = trained(False, **how)
    found, metrics, sizes = trained(True, **how)
    assert (found[0] - expected[0]).norm() <= 1e-6 * expected[0].norm()
    # One group is left, of whose first episode one decision is valid.
    assert sum(sizes[True]) == HORIZON + 1
    assert metrics["train/groups_without_signal"] == 2


def test_the_optimizer_steps_where_no_sample_has_a_gradient():
    found, metrics, sizes = trained(True, algorithm="grpo", group_size=2, equal=range(ENVS))
    # Gradients of 0, and not none: Adam goes on by what it remembers.
    assert [float(one.norm()) for one in found] == [0.0]
    assert (sizes[True], metrics["async/skipped/samples"]) == ([], 1.0)


@pytest.mark.parametrize(
    ("live", "expected"), [([True, False], [ENVS]), ([False, True], [ENVS]), ([False, False], [])]
)
def test_the_sample_of_an_empty_last_pass_is_in_no_pass(monkeypatch, live, expected):
    learner = learner_of(settings_of({"mode": "full"}, micro_batch_size=ENVS), opinionated(1)).training
    made = []
    monkeypatch.setattr(learner, "_accumulate", lambda samples: made.append(len(samples["valid"])))
    monkeypatch.setattr(learner, "_step", lambda: None)
    learner.begin(0)
    for _ in range(2):
        made.clear()
        for number, is_live in enumerate(live):
            flags = torch.full((ENVS, 1), is_live)
            samples = {"advantages": torch.ones(ENVS, 1), "valid": flags, "counted": flags}
            learner.train_micro_batch(samples, steps=number == 1)
        assert made == expected
