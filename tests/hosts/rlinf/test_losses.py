import numpy as np
import pytest
import torch
from rlinf.algorithms.registry import get_policy_loss, policy_loss

from rlinf_async.config import Weighting
from rlinf_async.hosts.kit.ratios import at_ratio_level
from rlinf_async.hosts.rlinf.corrected_loss import CorrectedLoss, register
from rlinf_async.hosts.rlinf.losses import LOSS_NAME

BATCH, CHUNKS, DIMS = 6, 3, 4
SHAPES = [
    ("token_level", "chunk_level"),
    ("token_level", "action_level"),
    ("action_level", "chunk_level"),
    ("action_level", "action_level"),
    ("chunk_level", "chunk_level"),
]
"""RLinf's `logprob_type` and `reward_type`, as far as they go together."""


all_shapes = pytest.mark.parametrize(("level", "rewards"), SHAPES)
all_masks = pytest.mark.parametrize("mask", ["none", "some", "weighted"])


def micro_batch(level, rewards, *, mask="some", seed=0, spread=0.2):
    """What RLinf's training step passes to a loss, and the proximal log-probabilities."""
    rng = np.random.default_rng(seed)
    width = (BATCH, 1 if rewards == "chunk_level" else CHUNKS)

    def tensor(shape, scale=1.0):
        return torch.tensor(rng.normal(0, scale, shape), dtype=torch.float32)

    behaviour = tensor((BATCH, CHUNKS * DIMS)) - 1
    proximal = behaviour + tensor(behaviour.shape, spread)
    valid = torch.tensor(rng.random(width) < 0.7)
    valid[0, 0] = True
    fields = {
        "task_type": "embodied",
        "logprob_type": level,
        "reward_type": rewards,
        "single_action_dim": DIMS,
        "logprobs": (proximal + tensor(behaviour.shape, spread)).requires_grad_(),
        "old_logprobs": behaviour,
        "advantages": tensor(width, 2.0),
        "values": tensor(width).requires_grad_(),
        "prev_values": tensor(width),
        "returns": tensor(width),
        "loss_mask": None if mask == "none" else valid,
        "loss_mask_sum": None,
        "max_episode_steps": None,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "value_clip": 0.5,
        "huber_delta": 1.0,
        "critic_warmup": False,
    }
    if mask == "weighted":
        lengths = torch.tensor(rng.integers(1, 20, (BATCH, 1)), dtype=torch.float32)
        fields |= {"loss_mask_sum": lengths.expand(width), "max_episode_steps": 20}
    return fields, proximal


def corrected(base, level, *, dual_clip=None, correction="decoupled", **weighting):
    rule = Weighting(correction=correction, **weighting)
    return CorrectedLoss(
        get_policy_loss(base),
        weighting=rule,
        level=level.removesuffix("_level"),
        action_dim=DIMS,
        dual_clip=dual_clip,
    )


def ours(fields, proximal=None, base="actor_critic", *, version=0, more=None, **train):
    """The corrected loss, found by RLinf under its registered name; `more` fields are in the micro-batch."""
    loss = corrected(base, fields["logprob_type"], **train)
    name = register(loss)
    with loss.micro_batch({"proximal_logprobs": proximal, **(more or {})}, version):
        return policy_loss(loss_type=name, **fields)


def theirs(fields, loss_type, **more):
    return policy_loss(loss_type=loss_type, **fields, **more)


def gradient(loss, fields, name="logprobs"):
    return torch.autograd.grad(loss, fields[name], retain_graph=True)[0]


def summed(logprobs, level):
    """[BATCH, ratios of a sample], without RLinf and without `at_ratio_level`."""
    cube = logprobs.detach().numpy().astype(np.float64).reshape(BATCH, CHUNKS, DIMS)
    if level == "token_level":
        return cube.reshape(BATCH, -1)
    return cube.sum(axis=2) if level == "action_level" else cube.sum(axis=(1, 2))[:, None]


def spread_over(field, ratios, level):
    """A per-chunk or per-action field, [BATCH, ratios of a sample]."""
    values = field.detach().numpy().astype(np.float64)
    if values.shape[1] == 1:
        return np.repeat(values, ratios, axis=1)
    return np.repeat(values, DIMS, axis=1) if level == "token_level" else values


def written_out(fields, proximal, dual_clip=None):
    """Decoupled PPO, ratio by ratio: -E[w min(r A, clip(r) A)], with RLinf's aggregation over the mask."""
    level = fields["logprob_type"]
    theta, mu = summed(fields["logprobs"], level), summed(fields["old_logprobs"], level)
    prox = summed(proximal, level)
    advantage = spread_over(fields["advantages"], theta.shape[1], level)
    total = np.zeros_like(theta)
    for place in np.ndindex(theta.shape):
        ratio, a = np.exp(theta[place] - prox[place]), advantage[place]
        objective = min(ratio * a, min(max(ratio, 0.8), 1.28) * a)
        if dual_clip is not None and a < 0:
            objective = max(objective, dual_clip * a)
        total[place] = -np.exp(prox[place] - mu[place]) * objective
    if fields["loss_mask"] is None:
        return total.mean()
    mask = spread_over(fields["loss_mask"], theta.shape[1], level)
    if fields["max_episode_steps"] is not None:
        share = spread_over(fields["loss_mask_sum"], theta.shape[1], level) / fields["max_episode_steps"]
        return (total / share * mask).mean()
    # RLinf divides by the valid entries of the mask, which at token level has one column for all tokens.
    rows = CHUNKS if fields["reward_type"] == "action_level" else 1
    repeats = mask.size / (BATCH * rows)
    return (total * mask).sum() / (mask.sum() / repeats)


@all_masks
@all_shapes
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_the_loss_is_decoupled_ppo_written_out(level, rewards, mask, dual_clip):
    fields, proximal = micro_batch(level, rewards, mask=mask)
    loss, metrics = ours({**fields, "clip_ratio_c": dual_clip}, proximal, base="actor")
    assert loss.item() == pytest.approx(written_out(fields, proximal, dual_clip), rel=1e-4, abs=1e-5)
    assert metrics["actor/policy_loss"] == pytest.approx(loss.item())


@all_masks
@all_shapes
@pytest.mark.parametrize("base", ["actor_critic", "actor"])
def test_where_the_anchor_is_the_behaviour_policy_it_is_rlinfs_own_loss(level, rewards, mask, base):
    fields, _ = micro_batch(level, rewards, mask=mask)
    loss, metrics = ours(fields, fields["old_logprobs"], base=base)
    expected, their_metrics = theirs(fields, base)
    assert loss.item() == expected.item()
    assert torch.equal(gradient(loss, fields), gradient(expected, fields))
    assert {name: value for name, value in metrics.items() if "behaviour" not in name} == their_metrics
    assert metrics["actor/behaviour_weight"] == 1.0


@all_masks
@all_shapes
def test_it_is_rlinfs_decoupled_loss_given_the_same_proximal_log_probabilities(level, rewards, mask):
    fields, proximal = micro_batch(level, rewards, mask=mask)
    loss, metrics = ours(fields, proximal)
    expected, their_metrics = theirs(fields, "decoupled_actor_critic", proximal_logprobs=proximal)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(gradient(loss, fields), gradient(expected, fields), rtol=1e-4, atol=1e-6)
    assert torch.allclose(gradient(loss, fields, "values"), gradient(expected, fields, "values"))
    assert metrics["actor/policy_loss"] == pytest.approx(their_metrics["actor/policy_loss"], rel=1e-5)
    assert metrics["critic/value_loss"] == pytest.approx(their_metrics["critic/value_loss"])


@all_masks
@all_shapes
def test_with_a_dual_clip_it_is_rlinfs_decoupled_loss_with_it(level, rewards, mask):
    fields, proximal = micro_batch(level, rewards, mask=mask)
    found, metrics = ours(fields, proximal, dual_clip=1.2)
    expected, theirs_say = theirs(
        fields, "decoupled_actor_critic", proximal_logprobs=proximal, clip_ratio_c=1.2
    )
    assert theirs_say["actor/dual_clip_fraction"] > 0
    assert metrics["actor/dual_cliped_ratio"] > 0
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(gradient(found, fields), gradient(expected, fields), rtol=1e-4, atol=1e-6)
    without, _ = ours(fields, proximal)
    assert abs(without.item() - found.item()) > 1e-4


def test_a_dual_clip_that_rlinfs_training_gives_comes_first():
    fields, proximal = micro_batch("action_level", "action_level")
    given = {**fields, "clip_ratio_c": 3.0}
    found, _ = ours(given, proximal, base="actor", dual_clip=1.2)
    expected, _ = ours(given, proximal, base="actor")
    assert found.item() == expected.item()


def test_these_tests_would_notice_a_forgotten_weight():
    fields, proximal = micro_batch("action_level", "action_level")
    unweighted, _ = theirs({**fields, "old_logprobs": proximal}, "actor")
    assert abs(unweighted.item() - written_out(fields, proximal)) > 1e-2


@all_shapes
def test_the_reported_weight_is_the_mean_over_valid_samples(level, rewards):
    fields, proximal = micro_batch(level, rewards)
    _, metrics = ours(fields, proximal)
    weights = np.exp(summed(proximal, level) - summed(fields["old_logprobs"], level))
    valid = spread_over(fields["loss_mask"], weights.shape[1], level).astype(bool)
    assert metrics["actor/behaviour_weight"] == pytest.approx(weights[valid].mean(), rel=1e-4)
    assert metrics["actor/behaviour_kl"] == pytest.approx(-np.log(weights[valid]).mean(), rel=1e-3, abs=1e-5)


def test_a_micro_batch_without_valid_samples_has_a_finite_loss():
    fields, proximal = micro_batch("action_level", "action_level")
    fields["loss_mask"] = torch.zeros_like(fields["loss_mask"])
    loss, _ = ours(fields, proximal, base="actor")
    assert loss.item() == 0.0


def test_proximal_log_probabilities_of_a_model_in_half_precision_are_used_in_float32():
    fields, proximal = micro_batch("action_level", "action_level")
    rounded = proximal.to(torch.bfloat16)
    assert ours(fields, rounded)[0].item() == ours(fields, rounded.float())[0].item()


def test_outside_of_a_micro_batch_the_loss_is_an_error():
    fields, proximal = micro_batch("action_level", "action_level")
    loss = corrected("actor", "action_level")
    register(loss)
    with loss.micro_batch({"proximal_logprobs": proximal}, 0):
        policy_loss(loss_type=LOSS_NAME, **fields)
    with pytest.raises(RuntimeError, match="outside of a micro-batch"):
        policy_loss(loss_type=LOSS_NAME, **fields)


def test_a_failing_step_does_not_leave_its_log_probabilities_to_the_next():
    fields, proximal = micro_batch("action_level", "action_level")
    loss = corrected("actor", "action_level")
    register(loss)
    with pytest.raises(KeyError), loss.micro_batch({"proximal_logprobs": proximal}, 0):
        raise KeyError
    with pytest.raises(RuntimeError):
        policy_loss(loss_type=LOSS_NAME, **fields)


@all_masks
@all_shapes
@pytest.mark.parametrize(("lag", "version"), [(0, 5), (1, 5), (4, 5)])
def test_interpolated_it_is_rlinfs_decoupled_loss_given_versions(level, rewards, mask, lag, version):
    fields, _ = micro_batch(level, rewards, mask=mask)
    versions = torch.full((len(fields["old_logprobs"]), 1), version - lag)
    found, _ = ours(fields, version=version, more={"versions": versions}, interpolates=True)
    # RLinf wants a version per log-probability, and takes the one that is being made for the current one.
    repeated = torch.full_like(fields["old_logprobs"], version - lag)
    expected, _ = theirs(
        fields, "decoupled_actor_critic", versions=repeated, current_version=float(version + 1)
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(gradient(found, fields), gradient(expected, fields), rtol=1e-4, atol=1e-6)


@all_shapes
def test_bounded_weights_scale_advantages_and_keep_every_sample_in_the_denominator(level, rewards):
    fields, proximal = micro_batch(level, rewards)
    bound = 1.1
    rho = np.exp(summed(proximal, level) - summed(fields["old_logprobs"], level))
    beyond, weight = rho > bound, np.minimum(rho, bound)
    assert 0 < beyond.mean() < 1
    # What weights the loss of a sample may as well weigh its advantage, which RLinf aggregates itself.
    anchored = {**fields, "old_logprobs": proximal}
    loss, metrics = ours(fields, proximal, "actor", correction="tis", max_weight=bound)
    per_ratio = gradient(loss, fields)
    plain = gradient(theirs(anchored, "actor")[0], anchored)
    assert np.allclose(
        summed_gradient(per_ratio, level), summed_gradient(plain, level) * weight, rtol=1e-3, atol=1e-6
    )
    valid = spread_over(fields["loss_mask"], rho.shape[1], level).astype(bool)
    assert metrics["actor/behaviour_bounded"] == pytest.approx(beyond[valid].mean())


@all_shapes
@pytest.mark.parametrize("scored", ["one", "all"])
def test_denoise_steps_change_what_is_measured_and_not_what_is_trained(level, rewards, scored):
    fields, proximal = micro_batch(level, rewards, spread=0.05)
    steps = torch.full((BATCH, 4), 2) if scored == "one" else torch.arange(4).repeat(BATCH, 1)
    expected, _ = ours(fields, proximal, base="actor")
    more = {"forward_inputs": {"denoise_inds": steps}}
    found, metrics = ours(fields, proximal, base="actor", version=4, more=more)
    assert torch.equal(gradient(found, fields), gradient(expected, fields))
    log_ratios = summed(proximal, level) - summed(fields["old_logprobs"], level)
    valid = spread_over(fields["loss_mask"], log_ratios.shape[1], level).astype(bool)
    scaled = 5 * log_ratios if scored == "all" else log_ratios
    distance = (np.exp(scaled) - 1 - scaled) * (1 if scored == "all" else 16)
    assert metrics["actor/behaviour_kl"] == pytest.approx(distance[valid].mean(), rel=1e-3)


def summed_gradient(gradient, level):
    """The gradient of each ratio: all log-probabilities that it sums have the same."""
    return (
        summed(gradient, level)
        / {"token_level": 1, "action_level": DIMS, "chunk_level": CHUNKS * DIMS}[level]
    )


@pytest.mark.parametrize("layout", [(BATCH, CHUNKS * DIMS), (BATCH, CHUNKS, DIMS)])
@pytest.mark.parametrize(
    ("level", "shape"),
    [
        ("token_level", (BATCH, CHUNKS, DIMS)),
        ("action_level", (BATCH, CHUNKS)),
        ("chunk_level", (BATCH,)),
    ],
)
def test_log_probabilities_are_summed_to_the_level_of_the_ratio_in_any_layout(layout, level, shape):
    logprobs = torch.arange(BATCH * CHUNKS * DIMS, dtype=torch.float32).reshape(layout)
    result = at_ratio_level(logprobs, level.removesuffix("_level"), DIMS)
    assert result.shape == shape
    assert result.sum() == logprobs.sum()
    assert np.array_equal(result.reshape(BATCH, -1).numpy(), summed(logprobs, level))


@all_shapes
@pytest.mark.parametrize("bad", [float("nan"), 1e4, -1e4])
def test_samples_that_are_masked_or_far_away_leave_loss_and_gradients_finite(level, rewards, bad):
    fields, proximal = micro_batch(level, rewards)
    mask = fields["loss_mask"]
    masked = ~mask.repeat_interleave(CHUNKS * DIMS // mask.shape[1], dim=1)
    assert masked.any()
    logprobs = fields["logprobs"].detach().clone()
    fields["advantages"] = fields["advantages"].clone()
    fields["advantages"][0] = 0.0
    expected, _ = ours(fields, proximal)
    logprobs[masked] = bad
    if bad == bad:  # one that counts, too, where there is nothing to learn
        logprobs[0] = bad
    fields["logprobs"] = logprobs.requires_grad_()
    for name in ("values", "prev_values", "returns"):
        fields[name] = fields[name].detach().masked_fill(~mask, bad)
    fields["values"].requires_grad_()
    loss, metrics = ours(fields, proximal)
    loss.backward()
    assert torch.isfinite(fields["values"].grad).all()
    assert (fields["values"].grad[~mask] == 0).all()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.isfinite(logprobs.grad).all()
    assert (logprobs.grad[masked] == 0).all()
    assert all(np.isfinite(float(value)) for value in metrics.values())
