"""The loss of a micro-batch: veRL's functions on the numbers of decisions, and what delay adds to them."""

from dataclasses import itertools

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rlinf_async.core.objectives import importance_weight, loglinear, ppo_loss, value_loss
from rlinf_async.hosts.kit.ratios import at_ratio_level
from rlinf_async.hosts.verl.algorithms import SELECTING_LOSSES, override_for
from rlinf_async.hosts.verl.learner_worker import actor_config
from rlinf_async.hosts.verl.losses import PolicyLoss
from tests.hosts.verl.engines import ACTION, CHUNKS, config, settings

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY  # isort: skip

ACTOR = "actor_rollout_ref.actor"

N = 12


def scores(seed=0):
    """What a policy says of N decisions."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "logprobs": torch.randn(N, CHUNKS, ACTION, generator=draw) * 0.3,
        "values": torch.randn(N, 1, generator=draw),
        "entropy": torch.rand(N, CHUNKS, ACTION, generator=draw),
    }


def batch(ratios, *, critic=True, **more):
    """N decisions with `ratios` each, a third of which do not count."""
    draw = torch.Generator().manual_seed(7)

    def spread(column):
        return column[:, None].expand(N, ratios)

    mask = spread((torch.arange(N) % 3 > 0).float())
    fields = {
        "old_log_probs": torch.randn(N, ratios, generator=draw) * 0.3,
        "advantages": spread(torch.randn(N, generator=draw)),
        "response_mask": mask,
        **more,
    }
    if critic:
        fields |= {
            "returns": spread(torch.randn(N, generator=draw)),
            "values": spread(torch.randn(N, generator=draw)),
        }
    told = {"dp_size": 1, "batch_num_tokens": mask.sum().item(), "global_batch_size": N}
    data = TensorDict(fields, batch_size=[N])
    for name, value in told.items():
        data[name] = NonTensorData(value)
    return data


def loss_of(of, *overrides, streamed=False):
    return PolicyLoss(actor=actor_config(config(*overrides), of), settings=of, streamed=streamed)


def ratios_of(logprobs, level, action_dim):
    """One row a decision, as veRL has sequences."""
    return at_ratio_level(logprobs, level, action_dim).reshape(len(logprobs), -1)


def expected_policy(logprobs, anchor, advantages, mask):
    losses = ppo_loss(logprobs, anchor, advantages, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    return (losses * mask).sum() / mask.sum()


@pytest.mark.parametrize("level", ["token", "action", "chunk"])
def test_the_loss_is_ppos_at_the_level_of_the_ratio_and_half_the_squared_error_of_values(level):
    of = settings(ratio_level=level)
    said = scores()
    logprobs = ratios_of(said["logprobs"], level, ACTION)
    data = batch(logprobs.shape[1])
    mask = data["response_mask"]

    found, metrics = loss_of(of)(model_output=said, data=data)

    policy = expected_policy(logprobs, data["old_log_probs"], data["advantages"], mask)
    values = said["values"].expand_as(mask)
    critic = value_loss(values, data["values"], data["returns"], clip=of.value_clip)
    torch.testing.assert_close(found, policy + (critic * mask).sum() / mask.sum())
    assert metrics["actor/pg_loss"].aggregate() == pytest.approx(policy.item(), abs=1e-6)


@pytest.mark.parametrize(
    ("correction", "proximal"),
    list(itertools.product(("decoupled", "tis"), ("recomputed", "loglinear"))),
)
def test_corrected_losses_are_those_of_the_core_objectives(correction, proximal):
    advanced = {"max_weight": 1.1, "proximal": proximal}
    of = settings(asynchrony={"mode": "train", "train": {"correction": correction}, "advanced": advanced})
    said = scores()
    draw = torch.Generator().manual_seed(1)
    behaviour = torch.randn(N, 1, generator=draw) * 0.3
    staleness = torch.arange(N) % 2
    data = batch(1, critic=False, behaviour_log_probs=behaviour, staleness=staleness)
    logprobs = ratios_of(said["logprobs"], "chunk", ACTION)
    anchor = data["old_log_probs"]
    if proximal == "loglinear":
        anchor = loglinear(logprobs, behaviour, staleness[:, None])
    bound = of.asynchrony.weighting.max_weight
    weight = importance_weight(anchor, behaviour, correction=correction, max_weight=bound)

    found, metrics = loss_of(of)(model_output=said, data=data)

    mask = data["response_mask"]
    torch.testing.assert_close(found, expected_policy(logprobs, anchor, data["advantages"] * weight, mask))
    mean = ((weight * mask).sum() / mask.sum()).item()
    assert metrics["actor/behaviour_weight"].aggregate() == pytest.approx(mean, rel=1e-5)
    assert ("actor/behaviour_bounded" in metrics) == (correction != "decoupled")


def test_no_gradient_flows_into_the_anchor_or_the_weights():
    of = settings(asynchrony={"mode": "train", "advanced": {"proximal": "loglinear"}})
    said = scores()
    said["logprobs"].requires_grad_()
    behaviour = ratios_of(said["logprobs"].detach(), "chunk", ACTION) + 0.05
    data = batch(1, critic=False, behaviour_log_probs=behaviour, staleness=torch.ones(N))
    loss, _ = loss_of(of)(model_output=said, data=data)
    torch.autograd.backward(loss)
    ratio = torch.exp(0.5 * torch.tensor(-0.05))  # half the way, so half the difference
    weight = torch.exp(0.5 * torch.tensor(-0.05))
    mask, advantages = data["response_mask"][:, 0], data["advantages"][:, 0]
    expected = -(ratio * weight * advantages * mask) / mask.sum()
    torch.testing.assert_close(said["logprobs"].grad[:, 0, 0], expected)


def test_the_bonus_for_entropy_is_subtracted_at_the_level_of_the_ratio():
    of = settings(ratio_level="action")
    said, data = scores(), batch(CHUNKS, critic=False)
    plain, _ = loss_of(of)(model_output=said, data=data)
    found, _ = loss_of(of, "actor_rollout_ref.actor.entropy_coeff=0.1")(model_output=said, data=data)
    mask = data["response_mask"]
    entropy = (ratios_of(said["entropy"], "action", ACTION) * mask).sum() / mask.sum()
    torch.testing.assert_close(plain - found, 0.1 * entropy)


def test_a_streamed_micro_batch_has_a_sum_where_the_step_has_a_mean_over_tokens():
    of = settings(ratio_level="token")
    said, data = scores(), batch(CHUNKS * ACTION)
    whole, _ = loss_of(of)(model_output=said, data=data)
    part, _ = loss_of(of, streamed=True)(model_output=said, data=data)
    torch.testing.assert_close(part, whole * data["response_mask"].sum())
    mode = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    assert not loss_of(of, mode, streamed=True).divides_later


def added_up(mode, aggregation, *, streamed):
    """The loss of 12 decisions, in one micro-batch or in two of unequal masks, divided as a step divides."""
    of = settings(ratio_level="token")
    overrides = [f"{ACTOR}.policy_loss.loss_mode={mode}", f"{ACTOR}.loss_agg_mode={aggregation}"]
    compute = loss_of(of, *overrides, f"{ACTOR}.policy_loss.dro_beta=0.5", streamed=streamed)
    said, data = scores(), batch(CHUNKS * ACTION)
    cuts = [slice(0, 5), slice(5, N)] if streamed else [slice(0, N)]
    parts = []
    for cut in cuts:
        part = data[cut]
        part["batch_num_tokens"] = NonTensorData(part["response_mask"].sum().item())
        parts.append(compute(model_output={k: v[cut] for k, v in said.items()}, data=part)[0])
    return sum(parts) / (data["response_mask"].sum() if compute.divides_later else 1)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("mode", sorted(POLICY_LOSS_REGISTRY.keys() - {"bypass_mode"} - SELECTING_LOSSES))
def test_micro_batches_of_a_loss_add_up_to_its_step_or_it_is_known_that_they_do_not(mode, aggregation):
    """Every loss of veRL's: a new one that is neither fails here."""
    whole, streamed = (added_up(mode, aggregation, streamed=cut) for cut in (False, True))
    assert torch.allclose(whole, streamed, rtol=1e-5) is not bool(override_for(mode, aggregation))


@pytest.mark.parametrize("mode", ["vanilla", "gspo", "clip_cov", "kl_cov", "dppo_tv"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e4, -1e4])
def test_decisions_that_are_masked_or_far_away_leave_loss_and_gradients_finite(bad, mode):
    of = settings(asynchrony={"mode": "train"})
    entropy = f"{ACTOR}.entropy_coeff=0.1"
    compute = loss_of(of, f"{ACTOR}.policy_loss.loss_mode={mode}", entropy)

    def trained(fill, *, far):
        said = scores()
        masked = torch.arange(N) % 3 == 0
        for each in said.values():
            each[masked] = fill
        ratios = ratios_of(said["logprobs"], of.ratio_level, ACTION).shape[1]
        data = batch(ratios, behaviour_log_probs=torch.full((N, ratios), -0.5))
        data["advantages"] = data["advantages"].clone()
        data["advantages"][1] = 0.0  # counts, and has nothing to teach
        if far and fill == fill:
            said["logprobs"][1] = fill
        for name in ("old_log_probs", "behaviour_log_probs", "advantages", "returns", "values"):
            data[name] = data[name].clone()
            data[name][masked] = fill
        for each in said.values():
            each.requires_grad_()
        loss, _ = compute(model_output=said, data=data)
        loss.backward()
        return loss, masked, said

    clean, _, _ = trained(0.0, far=False)
    loss, masked, said = trained(bad, far="cov" not in mode)
    assert torch.isfinite(loss)
    if mode != "kl_cov":  # it measures how far away an entry is
        torch.testing.assert_close(loss, clean)
    for each in said.values():
        assert torch.isfinite(each.grad).all()
        assert (each.grad[masked] == 0).all()
