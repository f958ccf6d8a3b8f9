"""Samples without a gradient, left out of veRL's training, beside veRL's training of all samples."""

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.verl.algorithms import LOSS_NAMES
from rlinf_async.hosts.verl.engine import PolicyEngine
from rlinf_async.hosts.verl.learner_worker import actor_config
from rlinf_async.hosts.verl.left_out import LOSS_KEY, PROPORTIONAL_LOSSES, ROW_LOSSES, left_out, reasons_kept
from rlinf_async.hosts.verl.losses import PolicyLoss
from rlinf_async.hosts.verl.view import VerlView
from tests.hosts.verl.engines import config, farthest, learner, rollout, settings, train, weights

PLAIN = ("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=0.3")
"""A step as long as its gradient, so that weights show how far two gradients are apart."""
STREAMS = {"streamer": {"enabled": True}, "advanced": {"normalization": "deferred"}}
MASKED, SILENT = LeftOut(masked=True), LeftOut(masked=True, silent=True)


def equal_scores(of, seed):
    """Rollouts in which the first half of the groups have equal rewards."""
    fields = rollout(of, seed=seed)
    rewards = fields["rewards"]
    rewards[:, : rewards.shape[1] // 2] = 0.0
    return fields


def trained(
    leaves, monkeypatch, *, block, make=lambda of, seed: rollout(of, seed=seed), overrides=(), **changes
):
    """The weights after two batches, the metrics of each, and the samples of passes with gradients."""
    of, computed = settings(asynchrony=block, left_out=leaves, **changes), []
    worker = learner(of, *PLAIN, *overrides)
    scores = PolicyEngine.scores

    def counting(engine, inputs, **more):
        if torch.is_grad_enabled():
            computed.append(len(inputs["states"]))
        return scores(engine, inputs, **more)

    monkeypatch.setattr(PolicyEngine, "scores", counting)
    metrics = train(worker, of, [make(of, seed) for seed in (1, 2)])
    monkeypatch.undo()
    return weights(worker), metrics, computed


@pytest.mark.parametrize("block", [{"mode": "off"}, STREAMS, {**STREAMS, "train": {"enabled": True}}])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
def test_masked_samples_are_in_no_pass_and_weights_are_those_of_training_all(monkeypatch, block, mode):
    overrides = [f"actor_rollout_ref.actor.loss_agg_mode={mode}"]
    every, expected, all_rows = trained(LeftOut(), monkeypatch, block=block, overrides=overrides)
    some, found, rows = trained(MASKED, monkeypatch, block=block, overrides=overrides)
    assert farthest(every, some) < 1e-6
    of = settings()
    valid = sum(int((~rollout(of, seed=seed)["ended"][:-1]).sum()) for seed in (1, 2))
    # A pass that would be smaller than others of its step is padded up to their size.
    assert valid <= sum(rows) <= valid + len(rows)
    assert (sum(rows) < sum(all_rows), len(rows) < len(all_rows)) == (True, True)
    shares = [step["async/skipped/samples"] for step in found]
    assert sum(shares) / 2 == pytest.approx(1 - valid / (2 * of.samples_per_batch))
    for name in ("train/actor/pg_loss", "train/actor/grad_norm", "train/critic/vf_loss"):
        assert [step[name] for step in found] == pytest.approx([step[name] for step in expected], abs=1e-5)


@pytest.mark.parametrize("block", [{"mode": "off"}, STREAMS])
def test_groups_of_equal_rewards_are_in_no_pass_and_weights_are_those_of_training_all(monkeypatch, block):
    how = {"block": block, "make": equal_scores, "estimator": "grpo", "group_size": 2, "normalizes": False}
    how["overrides"] = ["algorithm.adv_estimator=grpo"]
    every, _, _ = trained(LeftOut(), monkeypatch, **how)
    some, found, rows = trained(SILENT, monkeypatch, **how)
    assert farthest(every, some) < 1e-6
    assert [step["train/groups_without_signal"] for step in found] == [2.0, 2.0]
    of = settings(group_size=2)
    live = sum(int((~equal_scores(of, seed)["ended"][:-1, 4:]).sum()) for seed in (1, 2))
    assert live <= sum(rows) <= live + len(rows)


@pytest.mark.parametrize("block", [{"mode": "off"}, STREAMS])
def test_the_optimizer_steps_where_no_sample_has_a_gradient(monkeypatch, block):
    def silent(of, seed):
        return rollout(of, seed=seed) | {"rewards": torch.zeros(of.horizon, of.plan.total_envs)}

    how = {"make": silent, "estimator": "grpo", "group_size": 2, "normalizes": False, "block": block}
    how["overrides"] = ["algorithm.adv_estimator=grpo"]
    every, _, _ = trained(LeftOut(), monkeypatch, **how)
    some, found, _ = trained(SILENT, monkeypatch, **how)
    # By the decay of weights.
    assert farthest(some, weights(learner(settings(), *PLAIN))) > 1e-3
    assert farthest(every, some) == 0
    assert [step["async/skipped/samples"] for step in found] == [1.0, 1.0]


def test_masked_samples_are_in_no_anchor_and_no_value_pass(monkeypatch):
    of = settings(asynchrony={"train": {"enabled": True}}, left_out=MASKED)
    worker, anchored = learner(of, *PLAIN), []
    passes = PolicyEngine.passes

    def counting(engine, parts, *, values):
        parts = list(parts)
        anchored.extend(len(part["prev_logprobs"]) for part in parts if values)
        return passes(engine, parts, values=values)

    monkeypatch.setattr(PolicyEngine, "passes", counting)
    fields = rollout(of, seed=1)
    train(worker, of, [fields])
    live = ~fields["ended"][:-1]
    assert sum(anchored) == int(live.sum() + live[-1].sum())


def loss_of(data, logprobs, name, streamed, **options):
    """The loss by name, of decisions of which some are masked, and its gradient."""
    of = settings(ratio_level="token")
    beta = "+actor_rollout_ref.actor.policy_loss.dro_beta=0.1"
    actor = actor_config(config(f"{LOSS_KEY}={name}", *([beta] if name == "dro" else [])), of)
    logprobs = logprobs.clone().requires_grad_()
    batch = TensorDict(data, batch_size=[len(logprobs)])
    for key, value in {"dp_size": 1, "global_batch_size": 8, **options}.items():
        batch[key] = NonTensorData(value)
    loss, _ = PolicyLoss(actor=actor, settings=of, streamed=streamed)(
        model_output={"logprobs": logprobs.view(len(logprobs), 2, 3)}, data=batch
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return gradient


def decisions(rows=8):
    draw = torch.Generator().manual_seed(3)
    old = torch.randn(rows, 6, generator=draw)
    mask = torch.ones(rows, 6)
    mask[::2] = 0
    data = {
        "old_log_probs": old,
        "response_mask": mask,
        "loss_mask": mask,
        "advantages": torch.randn(rows, 1, generator=draw).expand(rows, 6).contiguous(),
    }
    return data, old + 0.1 * torch.randn(rows, 6, generator=draw)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", sorted(ROW_LOSSES))
def test_a_loss_of_the_list_gives_decisions_the_same_gradient_without_those_that_are_masked(name, streamed):
    data, logprobs = decisions()
    live = data["response_mask"].any(dim=1)
    tokens = {"batch_num_tokens": int(data["response_mask"].sum())}
    every = loss_of(data, logprobs, name, streamed, **tokens)
    some = loss_of(
        {key: field[live] for key, field in data.items()}, logprobs[live], name, streamed, **tokens
    )
    torch.testing.assert_close(every[live], some)
    assert every[~live].abs().max() == 0


@pytest.mark.parametrize("name", sorted(ROW_LOSSES))
def test_a_decision_without_advantage_has_a_gradient_in_no_loss_that_is_said_to_be_proportional(name):
    data, logprobs = decisions()
    data["advantages"][1] = 0.0
    gradient = loss_of(data, logprobs, name, False, batch_num_tokens=24)
    assert (gradient[1].abs().max() == 0) == (name in PROPORTIONAL_LOSSES)


@pytest.mark.parametrize("name", sorted(set(LOSS_NAMES) - ROW_LOSSES))
def test_nothing_is_left_out_with_losses_that_look_at_a_micro_batch_and_the_remedy_helps(name):
    cfg = {
        "env": {"train": {"env_class": "any", "total_num_envs": 1}},
        "algorithm": {"adv_estimator": "gae"},
        "actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": name}}},
    }
    assert not left_out(VerlView.of(cfg))
    (reason,) = reasons_kept(VerlView.of(cfg))
    assert reason.override == f"{LOSS_KEY}=vanilla"
    cfg["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] = "vanilla"
    assert left_out(VerlView.of(cfg)) == MASKED
