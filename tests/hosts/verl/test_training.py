"""Training by veRL's engine, streamed and whole, beside what veRL itself makes of the same numbers."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.tensors import size_of, slice_samples
from rlinf_async.hosts.verl.learner_worker import actor_config
from rlinf_async.hosts.verl.losses import PolicyLoss
from rlinf_async.hosts.workers.inference_actor import InferenceActor
from tests.hosts.verl.engines import (
    STEPS,
    config,
    farthest,
    learner,
    learner_of,
    pieces,
    rollout,
    same,
    settings,
    train,
    train_pieces,
    training_of,
    weights,
)
from tests.making import accept

PLAIN = ("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=0.3")
"""A step as long as its gradient, so that weights show how far two gradients are apart."""


def samples_of(training, of, *, seed=0):
    """A batch of samples in a random order, some of which are not valid."""
    fields = training.rollout(pieces(of, rollout(of, seed=seed)))
    training.estimate(fields)
    size = of.samples_per_batch
    return training.samples(fields, torch.randperm(size, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("micro_batches", "mode", "level"),
    [
        (1, "token-mean", "chunk"),
        (2, "token-mean", "chunk"),
        (4, "token-mean", "token"),
        (8, "token-mean", "chunk"),
        (4, "seq-mean-token-mean", "token"),
        (8, "seq-mean-token-sum", "action"),
        (2, "seq-mean-token-sum-norm", "chunk"),
    ],
)
def test_micro_batches_that_arrive_one_by_one_add_up_to_the_step_that_verl_makes_of_them_all(
    micro_batches, mode, level
):
    overrides = (*PLAIN, f"actor_rollout_ref.actor.loss_agg_mode={mode}")
    of = settings(
        asynchrony={"mode": "streamer"},
        global_batch_size=32,
        micro_batch_size=32 // micro_batches,
        ratio_level=level,
    )
    ours, theirs = learner(of, *overrides), learner(of, *overrides)
    training = training_of(ours, of)
    training.begin(0)
    samples = samples_of(training, of)
    assert 0 < samples["response_mask"][:, 0].sum() < size_of(samples)

    size = of.micro_batch_size
    with training.working():
        for cut in range(micro_batches):
            micro_batch = slice_samples(samples, cut * size, (cut + 1) * size)
            training.train_micro_batch(micro_batch, steps=cut == micro_batches - 1)
    streamed = training.finish(lambda advantages: advantages)
    training_of(theirs, of)
    data = training.batch_of(ours.engine.held_inputs.with_inputs(samples), micro_batch_size=4)
    whole = tu.get(theirs.train_batch(data), "metrics")

    assert whole["grad_norm"] > 1e-3
    assert farthest(weights(ours), weights(theirs)) < 1e-6
    assert streamed["train/actor/grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
    assert streamed["train/loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_a_complete_batch_is_trained_as_by_a_plain_training_worker_to_the_last_bit():
    overrides = ("actor_rollout_ref.actor.shuffle=true", "actor_rollout_ref.actor.data_loader_seed=5")
    of = settings(update_epoch=2)
    ours, plain = learner(of, *overrides), learner(of, *overrides, cls=TrainingWorker)
    fields = rollout(of)

    train(ours, of, [fields])

    plain.set_loss_fn(PolicyLoss(actor=actor_config(config(*overrides), of), settings=of))
    data = training_of(ours, of).batch_of(by_hand(of, fields), micro_batch_size=4)
    tu.assign_non_tensor(data, mini_batch_size=16, epochs=2, seed=5, dataloader_kwargs={"shuffle": True})
    plain.train_mini_batch(data)
    assert same(weights(ours), weights(plain))


def by_hand(of, fields):
    """The samples of a rollout, one trajectory after another, with veRL's own advantages."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    def rows(tensor):
        return tensor.transpose(0, 1).flatten(0, 1)

    mask = (~fields["ended"][:-1]).float()
    values = fields["prev_values"][:-1]
    advantages, returns = compute_gae_advantage_return(
        *(tensor.T.contiguous() for tensor in (fields["rewards"] * mask, values, mask)), of.gamma, of.lam
    )
    valid = rows(mask)[:, None]
    return {
        "forward_inputs": {name: rows(tensor) for name, tensor in fields["forward_inputs"].items()},
        "old_log_probs": rows(fields["prev_logprobs"]).flatten(1).sum(dim=1, keepdim=True),
        "response_mask": valid,
        "loss_mask": valid,
        "advantages": advantages.flatten()[:, None],
        "returns": returns.flatten()[:, None],
        "values": rows(values)[:, None],
    }


@pytest.mark.parametrize("correction", ["decoupled", "tis"])
@pytest.mark.parametrize("mode", ["train", "full"])
def test_batches_of_older_policies_are_trained_and_measured(mode, correction):
    of = settings(asynchrony={"mode": mode, "train": {"correction": correction}})
    batches = [rollout(of, seed=seed) for seed in range(3)]
    for fields in batches[1:]:
        fields["versions"] = fields["versions"] - torch.tensor([0, 1]).repeat(4)

    worker = learner(of)
    found = train(worker, of, batches)

    assert all(metrics["train/actor/behaviour_weight"] > 0 for metrics in found)
    assert {"train/mismatch/lag_1/ratio", "train/staleness/lag_1/ratio"} <= found[2].keys()
    assert all(torch.isfinite(torch.tensor(list(metrics.values()))).all() for metrics in found)
    assert (mode == "full") == ("train/streamed" in found[2])


def test_the_anchor_is_the_policy_that_begins_the_batch_although_steps_are_made_in_between():
    """Pieces that come late are scored by the same weights as the first, and get the same ratios."""
    asynchrony = {"mode": "full", "advanced": {"measure_ratios": False}, "streamer": {"micro_batch_size": 4}}
    of = settings(
        asynchrony=asynchrony, estimator="grpo", normalizes=False, group_size=4, global_batch_size=16
    )
    worker = learner(of, "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.optim.lr=0.1")
    trained, seen = learner_of(worker, of), []
    score = trained.training.anchor
    trained.training.anchor = lambda fields: (score(fields), seen.append(fields["proximal_logprobs"].clone()))
    train_pieces(trained, [pieces(of, rollout(of))])

    fresh = learner(of, "algorithm.adv_estimator=grpo")
    once = training_of(fresh, of)
    with once.working():
        fields = once.rollout(pieces(of, rollout(of)))
        once.anchor(fields)
    assert torch.allclose(torch.cat(seen, dim=1), fields["proximal_logprobs"], atol=1e-6)
    assert farthest(weights(worker), weights(fresh)) > 1e-2


def live_rows(of, payload):
    """The decisions before an end, of groups of unlike returns; and last observations, for a critic."""
    live = ~payload["ended"][:-1]
    if of.plan.group_size > 1:
        returns = (payload["rewards"] * live).sum(dim=0).view(-1, of.plan.group_size)
        unlike = (returns != returns[:, :1]).any(dim=1)
        return (live & unlike.repeat_interleave(of.plan.group_size)).flatten().nonzero().flatten().tolist()
    return torch.cat([live, live[-1:]]).flatten().nonzero().flatten().tolist()


def scored_by_inference(worker, trained, of, arriving):
    """The pieces, all but one of the last micro-batch's scored by a copy of its policy, where live.

    Which one it is leaves the order as it is without scores.
    """
    actor = InferenceActor(config().vla.model, None, of, 0)
    actor._device = torch.device("cpu")
    asyncio.run(actor.initialise())
    actor.policy_module().load_state_dict(weights(worker))
    found = [replace(one, scores=Future()) for one in arriving]
    for index, one in enumerate(found):
        if index == len(found) - of.pieces_taken_together:
            continue
        with torch.no_grad():
            inputs = trained.to_score(one.payload)
            assert inputs.rows.tolist() == live_rows(of, one.payload)
            scores = actor.scores(inputs.samples, values=worker.wants_values(of))
        scores = inputs.at_their_rows(scores)
        one.scores.set_result({name: tensor.unflatten(0, (-1, one.size)) for name, tensor in scores.items()})
    return found


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_batch_that_inference_has_scored_trains_as_one_that_the_learner_scores(estimator):
    changes = {} if estimator == "gae" else {"normalizes": False, "group_size": 4}
    left_out, found = LeftOut(masked=True, silent=estimator == "grpo"), []
    for scorer in ("learner", "inference"):
        block = {"mode": "full", "advanced": {"measure_ratios": False}}
        of = settings(asynchrony=block, estimator=estimator, left_out=left_out, **changes)
        worker = learner(of, f"algorithm.adv_estimator={estimator}", *PLAIN)
        trained = learner_of(worker, of)
        for batch in range(3):
            fields = rollout(of, seed=batch)
            fields["rewards"][:, : 4 if estimator == "grpo" else 0] = 0.0  # a group without signal
            arriving = pieces(of, fields, batch=batch)
            trained.begin(batch)
            if scorer == "inference":
                arriving = scored_by_inference(worker, trained, of, arriving)
            accept(trained, arriving)
            trained.finish()
        found.append(weights(worker))
    assert farthest(*found) < 1e-5
    assert farthest(found[0], weights(learner(of, f"algorithm.adv_estimator={estimator}"))) > 1e-3


def test_what_the_learner_scores_is_what_the_policy_says():
    of = settings(asynchrony={"mode": "train"})
    worker = learner(of)
    training = training_of(worker, of)
    fields = training.rollout(pieces(of, rollout(of)))
    with training.working():
        training.anchor(fields)
    states = torch.cat([rollout(of)[name]["states"] for name in ("forward_inputs", "bootstrap_inputs")])
    assert fields["prev_values"].shape == (STEPS + 1, 8)
    with torch.no_grad():
        expected = worker.engine.module(
            forward_inputs={"states": states.flatten(0, 1), "action": torch.zeros(len(states) * 8, 6)}
        )
    assert torch.allclose(fields["prev_values"].flatten(), expected["values"].flatten(), atol=1e-6)


def test_a_log_probability_that_is_not_finite_stops_the_run():
    of = settings(asynchrony={"mode": "train"})
    training = training_of(learner(of), of)
    given = rollout(of)
    given["forward_inputs"]["action"][0, 0] = torch.inf
    fields = training.rollout(pieces(of, given))
    with training.working(), pytest.raises(FloatingPointError, match="3% of the logprobs"):
        training.anchor(fields)


def test_gae_without_values_names_the_key_that_gives_the_policy_some():
    of = settings()
    fields = rollout(of)
    del fields["prev_values"]
    with pytest.raises(ValueError, match="add_value_head=true"):
        training_of(learner(of), of).rollout(pieces(of, fields))


def test_metrics_of_the_rollouts_are_those_of_the_valid_decisions():
    of = settings()
    fields = rollout(of)
    (metrics,) = train(learner(of), of, [fields])
    valid = ~fields["ended"][:-1]
    assert metrics["rollout/rewards"] == pytest.approx(fields["rewards"][valid].mean().item())
    assert metrics["rollout/advantages_mean"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["rollout/advantages_min"] < 0 < metrics["rollout/advantages_max"]


def test_groups_without_signal_are_counted_in_each_batch_anew():
    of = settings(estimator="grpo", normalizes=False, group_size=4)
    fields = rollout(of)
    silent = {**fields, "rewards": torch.zeros_like(fields["rewards"])}
    found = train(learner(of, "algorithm.adv_estimator=grpo"), of, [silent, silent])
    groups = fields["rewards"].shape[1] / 4
    assert [metrics["train/groups_without_signal"] for metrics in found] == [groups, groups]


def test_the_learning_rate_takes_one_step_of_its_schedule_per_batch():
    overrides = ("actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",)
    rates = []
    for mode in ("off", "streamer"):
        of = settings(asynchrony={"mode": mode}, estimator="grpo", normalizes=False, group_size=4)
        found = train(
            learner(of, *overrides, "algorithm.adv_estimator=grpo"),
            of,
            [rollout(of, seed=s) for s in range(3)],
        )
        rates.append([metrics["train/actor/lr"] for metrics in found])
    assert rates[0] == rates[1]
    assert rates[0][0] > rates[0][1] > rates[0][2]
