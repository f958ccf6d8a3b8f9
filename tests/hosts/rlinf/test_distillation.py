"""On-policy distillation: the correction of a lag against the reverse KL, and what is refused."""

import itertools

import pytest
import torch

from rlinf_async.config import Weighting
from rlinf_async.hosts.judge.reasons import RefusedError, refuse
from rlinf_async.hosts.rlinf import tree
from rlinf_async.hosts.rlinf.corrected_loss import CorrectedLoss
from rlinf_async.hosts.rlinf.distillation import missing_parts, teacher_reasons
from rlinf_async.hosts.rlinf.reasons import fit
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.hosts.rlinf.given import config

STATES, TOKENS, BINS = 3, 2, 4
ACTIONS = torch.tensor(list(itertools.product(range(BINS), repeat=TOKENS)))
SERVED = {
    "algorithm.loss_type": "opd",
    "algorithm.adv_type": "opd",
    "algorithm.logprob_type": "token_level",
    "algorithm.reward_type": "action_level",
    "actor.model.model_type": "openvla_oft",
    "rollout.expert_model": {"model_path": "teacher"},
    "rollout.sampling_params.top_k": -1,
}


def policy(seed, *, near=None, by=1.0):
    """Logits of every token in every state, [states, tokens, bins]; `near` others, if there are any."""
    noise = torch.randn(STATES, TOKENS, BINS, generator=torch.Generator().manual_seed(seed)).double()
    return noise * by if near is None else near + noise * by


def of_actions(logits):
    """Log-probabilities of the tokens of every action in every state, [states x actions, tokens]."""
    each = logits.log_softmax(-1)[:, torch.arange(TOKENS), ACTIONS]
    return each.flatten(0, 1)


def expected_gradient(student, proximal, acting, teacher):
    """The mean, over all that the acting policy may do, of the gradient of the corrected loss."""
    chances = of_actions(acting).sum(1).exp() / STATES

    def written_out(*, logprobs, advantages, **_):
        return -(chances * (logprobs * advantages).flatten(1).sum(1)).sum(), {}

    rule = Weighting(correction="decoupled")
    loss = CorrectedLoss(written_out, weighting=rule, level="token", action_dim=TOKENS, distils=True)
    logits = student.clone().requires_grad_()
    behaviour = of_actions(acting)
    with loss.micro_batch({"proximal_logprobs": of_actions(proximal)}, 0):
        # As RLinf has shaped them: [samples, actions of a chunk, tokens].
        fields = {"logprobs": of_actions(logits), "old_logprobs": behaviour}
        fields["advantages"] = of_actions(teacher) - behaviour
        value, metrics = loss(loss_mask=None, **{name: field[:, None] for name, field in fields.items()})
    value.backward()
    assert "actor/behaviour_weight" in metrics
    return logits.grad


def gradient_of_reverse_kl(student, teacher):
    logits = student.clone().requires_grad_()
    own, other = logits.log_softmax(-1), teacher.log_softmax(-1)
    ((own.exp() * (own - other)).sum() / STATES).backward()
    return logits.grad


@pytest.mark.parametrize("lag", [0.0, 0.1, 1.0])
def test_at_the_proximal_policy_the_correction_gives_the_gradient_of_the_reverse_kl(lag):
    teacher, proximal = policy(0), policy(1)
    acting = policy(2, near=proximal, by=lag)
    exact = gradient_of_reverse_kl(proximal, teacher)
    found = expected_gradient(proximal, proximal, acting, teacher)
    assert float((found - exact).norm() / exact.norm()) < 1e-5
    # Without the correction, as if the acting policy were the proximal one, the error is of the lag's order.
    plain = expected_gradient(proximal, acting, acting, teacher)
    error = float((plain - exact).norm() / exact.norm())
    assert error < 1e-5 if lag == 0 else error > 0.3 * lag


def test_later_steps_are_as_far_off_as_those_of_a_run_without_a_lag():
    teacher, proximal = policy(0), policy(1)
    student, acting = policy(3, near=proximal, by=0.2), policy(2, near=proximal)
    found = expected_gradient(student, proximal, acting, teacher)
    on_policy = expected_gradient(student, proximal, proximal, teacher)
    assert torch.allclose(found, on_policy, atol=1e-6)


def test_a_release_without_distillation_is_named_as_the_reason():
    if tree.is_defined("compute_opd_actor_loss"):
        pytest.skip("this RLinf has it")
    with pytest.raises(RefusedError, match="on-policy distillation, which this RLinf does not have: use"):
        fit(config({**SERVED, "async": {"mode": "full"}}))


@pytest.fixture
def newer(monkeypatch):
    """RLinf's main branch, as far as a config is concerned."""
    monkeypatch.setattr(tree, "is_defined", lambda name: True)


@pytest.mark.parametrize("mode", ["full", "train", "rollout", "streamer"])
def test_every_level_is_accepted_with_a_teacher(newer, mode):
    found = fit(config({**SERVED, "async": {"mode": mode}}))
    assert not found.reasons
    assert not found.dropped


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout.expert_model": None}, "needs a teacher, and there is no rollout.expert_model"),
        ({"actor.model.model_type": "openpi"}, "does not support actor.model.model_type=openpi"),
        ({"algorithm.logprob_type": "chunk_level"}, "set algorithm.logprob_type=token_level"),
        ({"algorithm.reward_type": "chunk_level"}, "set algorithm.reward_type=action_level"),
        ({"env.train.auto_reset": True}, "set env.train.auto_reset=false"),
    ],
)
def test_what_rlinf_would_assert_after_its_first_rollouts_is_refused_before(newer, changes, words):
    assert not list(teacher_reasons(RLinfView.of(config(SERVED))))
    (reason,) = teacher_reasons(RLinfView.of(config({**SERVED, **changes})))
    assert words in reason.text


def test_half_of_a_distillation_is_refused_with_the_other_half(newer):
    with pytest.raises(RefusedError, match=r"set algorithm\.loss_type=opd"):
        refuse(list(missing_parts(RLinfView.of(config({**SERVED, "algorithm.loss_type": "actor"})))))
