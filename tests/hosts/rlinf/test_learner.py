"""Our learner in one process: off-policy batches and schedules."""

import itertools
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch
from rlinf.data.embodied_io_struct import convert_trajectories_to_batch
from rlinf.models import get_model
from rlinf.workers.actor import fsdp_actor_worker as stock

from rlinf_async.compose import compose_config
from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from tests.hosts.rlinf import synthetic
from tests.hosts.rlinf.alone import STEPS, Run, one_rank
from tests.hosts.rlinf.learners import SIZES, actor_of, ended, noting_anchors
from tests.hosts.rlinf.reference import Reference
from tests.hosts.rlinf.synthetic import pieces, trajectories
from tests.making import accept

GRADIENT = 1e-4
"""Largest norm of the difference of two gradients, relative to the gradient: sums in another order."""
WEIGHTS = 1e-3
"""The same for the way that the weights went; Adam divides by small numbers, which magnifies rounding."""
FAST = ("actor.optim.lr=0.003", "actor.optim.value_lr=0.003")
"""So that the later steps of a batch find a policy that is clipped."""


@pytest.fixture(scope="module", autouse=True)
def alone():
    with one_rank():
        yield


def deviation(found, expected):
    return float((found - expected).norm() / expected.norm())


OFF_POLICY = {
    "streamed in steps": ("async.mode=full", STEPS, "async.streamer.micro_batch_size=8"),
    "streamed in one step": ("async.mode=full",),
    "streamed, twice": (
        "async.mode=full",
        STEPS,
        "async.advanced.normalization=running",
        "algorithm.update_epoch=2",
    ),
    "whole, twice": ("async.mode=train", STEPS, "algorithm.update_epoch=2"),
    "deferred": (
        "async.mode=full",
        STEPS,
        "async.advanced.normalization=deferred",
        "algorithm.update_epoch=2",
    ),
    "grpo, streamed in steps": ("async.mode=full", STEPS, "algorithm.group_size=4"),
}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_batches_are_trained_as_rlinfs_decoupled_loss_trains_whole_steps(name):
    algorithm = "grpo" if "grpo" in name else "ppo"
    once = () if "algorithm.update_epoch=2" in OFF_POLICY[name] else ("algorithm.update_epoch=1",)
    run = Run.of(*OFF_POLICY[name], *once, *FAST, algorithm=algorithm)
    reference = Reference(run.cfg, normalised_by_the_batch_before=run.settings.streams)
    assert torch.equal(run.training.start, reference.training.start)
    for index in range(2):
        batch = run.batch(index)
        trained = torch.cat(run.train(index, batch, order=3, lag=min(index, 1))).flatten()
        reference.train(batch, trained.split(run.settings.global_batch_size))
    passes = run.settings.update_epoch * run.settings.optimizer_steps
    assert len(run.training.gradients) == len(reference.training.gradients) == 2 * passes
    for ours, theirs in zip(run.training.gradients, reference.training.gradients, strict=True):
        assert deviation(ours, theirs) < GRADIENT
    ours, theirs = (ended(each.actor, each.training).weights for each in (run, reference))
    assert deviation(ours - run.training.start, theirs - run.training.start) < WEIGHTS
    if passes > 1:
        assert all(found["train/actor/clip_fraction"] > 0.05 for found in run.training.metrics)


@pytest.mark.parametrize("mode", ["streamer", "train"])
def test_learning_rates_follow_the_schedule_batch_by_batch_as_rlinfs_do(mode):
    schedule = (
        "++actor.optim.lr_scheduler=cosine",
        "++actor.optim.lr_warmup_steps=2",
        "++actor.optim.total_training_steps=6",
    )
    run = Run.of(f"async.mode={mode}", "algorithm.update_epoch=1", STEPS, *schedule)
    theirs = actor_of(stock.EmbodiedFSDPActor, run.cfg)
    rates = []
    for index in range(3):
        batch = run.batch(index)
        run.train(index, batch)
        theirs.rollout_batch = theirs._process_received_rollout_batch(
            convert_trajectories_to_batch(trajectories(run.settings.plan, batch, 0))
        )
        theirs.compute_advantages_and_returns()
        theirs.run_training()
        rates.append([group["lr"] for group in run.actor.optimizer.param_groups])
        assert rates[-1] == [group["lr"] for group in theirs.optimizer.param_groups]
    assert all(one != other for one, other in itertools.pairwise(rates))


def test_samples_are_shuffled_anew_in_every_batch_and_on_every_rank_and_alike_in_every_run():
    def trained(index, *, rank=0, seed=7):
        chosen = ("async.mode=streamer", STEPS, "algorithm.update_epoch=1", f"actor.seed={seed}")
        run = Run.of(*chosen, rank=rank)
        return torch.cat(run.train(index, run.batch(0))).flatten().tolist()

    once = trained(0)
    assert trained(0) == once
    for other in (trained(1), trained(0, rank=1), trained(0, seed=8)):
        assert other != once
        assert sorted(other) == sorted(once)


def test_the_share_of_a_batch_that_is_trained_before_it_is_complete_is_told():
    run = Run.of(
        "async.mode=streamer", STEPS, "algorithm.update_epoch=1", "async.streamer.micro_batch_size=8"
    )
    count = run.settings.plan.pieces_per_rank
    for together in (1, 1, count):
        run.train(len(run.training.metrics), run.batch(0), together=together)
    # The first batch is normalised by itself; the last piece of one, or a whole batch, waits for nothing.
    told = [metrics["train/streamed"] for metrics in run.training.metrics]
    assert told == pytest.approx([0.0, (1 - 1 / count) / 3, 0.0])


def test_spread_over_steps_every_piece_gives_each_of_them_as_much():
    run = Run.of("async.mode=streamer", STEPS, "algorithm.update_epoch=1", "actor.micro_batch_size=8")
    plan = run.settings.plan
    run.train(0, run.batch(0))  # the first batch is kept, and shuffled as a whole
    trained = torch.cat(run.train(1, run.batch(0), order=3, together=1)).flatten()
    steps = trained.split(run.settings.global_batch_size)
    epochs = plan.rollout_epochs
    # Samples are numbered [epoch, decision, environment]; a piece is a shard's environments in one epoch.
    number = torch.arange(run.settings.samples_per_batch).reshape(epochs, run.settings.horizon, -1)
    for piece in itertools.chain.from_iterable(epoch.split(plan.piece_size, dim=1) for epoch in number):
        share = piece.numel() / len(steps)
        assert [int(torch.isin(step, piece).sum()) for step in steps] == [share] * len(steps)
    streamed = 1 - 1 / plan.pieces_per_rank
    assert run.training.metrics[1]["train/streamed"] == pytest.approx(streamed / len(steps))


class Selecting(torch.nn.Module):
    """A policy that stores the log-probabilities of all denoise steps, and selects those of the one drawn."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, forward_inputs, prev_logprobs, **kwargs):
        rows, drawn = torch.arange(len(prev_logprobs)), forward_inputs["denoise_inds"][:, 0]
        scored = self.policy(forward_inputs=forward_inputs, **kwargs)
        return {**scored, "prev_logprobs": prev_logprobs[rows, drawn]}


def with_denoise_steps(batch, steps=3):
    """The same samples, as a model stores them that draws one of several denoise steps."""
    draw = torch.Generator().manual_seed(5)
    stored = batch["prev_logprobs"]
    drawn = torch.randint(0, steps, stored.shape[:3], generator=draw)
    every = torch.randn(*stored.shape[:3], steps, stored.shape[3], generator=draw)
    chosen = torch.nn.functional.one_hot(drawn, steps).bool()
    every[chosen] = stored.flatten(0, 2)
    return {**batch, "prev_logprobs": every, "drawn": drawn[..., None]}


def off_policy_ratios(monkeypatch, *overrides, selecting):
    """What is measured on the second of two batches, every other sample of which is a version old."""
    run = Run.of("async.advanced.accept_bias=true", *overrides)
    if selecting:
        given = synthetic._inputs
        monkeypatch.setattr(
            synthetic, "_inputs", lambda batch: {**given(batch), "denoise_inds": batch["drawn"]}
        )
        run.actor.model = Selecting(run.actor.model)
        run.actor.cfg.actor.model.model_type = "gr00t"
    for index in range(2):
        batch = run.batch(index)
        run.train(index, with_denoise_steps(batch) if selecting else batch, lag=index)
    kinds = ("train/mismatch", "train/staleness", "train/proximal_error")
    return {name: value for name, value in run.training.metrics[-1].items() if name.startswith(kinds)}


@pytest.mark.parametrize(
    ("mode", "anchor", "level"),
    [
        ("train", "async.advanced.proximal=loglinear", "token_level"),
        ("train", "async.advanced.proximal=loglinear", "action_level"),
        ("full", "async.train.correction=none", "chunk_level"),
    ],
)
def test_ratios_of_a_model_that_stores_every_denoise_step_are_those_of_the_one_drawn(
    monkeypatch, mode, anchor, level
):
    overrides = (f"async.mode={mode}", anchor, f"algorithm.logprob_type={level}")
    plain = off_policy_ratios(monkeypatch, *overrides, selecting=False)
    assert any("mismatch/lag_1" in name for name in plain)
    assert off_policy_ratios(monkeypatch, *overrides, selecting=True) == pytest.approx(plain, abs=1e-6)


def live_rows(run, payload):
    """The decisions before an end, of groups of unlike returns; and last observations, for a critic."""
    live = ~payload["dones"][:-1, :, 0]
    if not run.settings.compares_groups:
        return torch.cat([live, live[-1:]]).flatten().nonzero().flatten().tolist()
    returns = (payload["rewards"][..., 0] * live).sum(dim=0).view(-1, 4)
    unlike = (returns != returns[:, :1]).any(dim=1).repeat_interleave(4)
    return (live & unlike).flatten().nonzero().flatten().tolist()


def scored_by_inference(run, pieces_of_batch):
    """The pieces, all but one of the last micro-batch's scored by a rollout worker's model, where live.

    Which one it is leaves the order as it is without scores.
    """
    worker = BatchingRolloutWorker.__new__(BatchingRolloutWorker)
    worker.cfg, worker.device = run.actor.cfg, torch.device("cpu")
    worker.hf_model = get_model(run.actor.cfg.actor.model)
    state = {name: tensor.full_tensor() for name, tensor in run.actor.model.state_dict().items()}
    worker.hf_model.load_state_dict(state)
    found = [replace(piece, scores=Future()) for piece in pieces_of_batch]
    for index, piece in enumerate(found):
        if index == len(found) - run.settings.pieces_taken_together:
            continue
        inputs = run.learner.to_score(piece.payload)
        assert inputs.rows.tolist() == live_rows(run, piece.payload)
        with torch.no_grad():
            scores = worker.scores(inputs.samples, values=run.actor.wants_values(run.settings))
        scores = inputs.at_their_rows(scores)
        found[index].scores.set_result(
            map_tensors(lambda tensor, b=piece.size: tensor.unflatten(0, (-1, b)), scores)
        )
    return found


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_batch_that_inference_has_scored_trains_as_one_that_the_learner_scores(algorithm):
    overrides: tuple[str, ...] = ("async.mode=full", STEPS, "algorithm.update_epoch=1")
    if algorithm == "grpo":
        overrides += ("algorithm.group_size=4",)
    silent, found = 0.0, []
    for score in (lambda run, taken: taken, scored_by_inference):
        run = Run.of(*overrides, algorithm=algorithm)
        assert run.settings.scored_by_inference
        for index in range(3):
            batch = run.batch(index, rewards="sparse" if algorithm == "grpo" else "dense")
            arriving = pieces(run.settings.plan, batch, 0, index=index, lag=1)
            run.actor.set_global_step(index)
            run.learner.begin(index)
            taken = score(run, arriving)
            with noting_anchors(run.training):
                accept(run.learner, taken)
            silent += run.learner.finish().get("train/groups_without_signal", 0.0)
        found.append(ended(run.actor, run.training))
    assert (silent > 0) == (algorithm == "grpo")
    alone, helped = found
    assert [len(one.anchors[0]) for one in found] == [
        3 * len(arriving) // run.settings.pieces_taken_together,
        3,
    ]
    assert deviation(helped.weights - helped.start, alone.weights - alone.start) < WEIGHTS
    assert alone.weights.ne(alone.start).any()


def test_rlinfs_own_learner_ends_with_the_sharding_that_is_refused():
    overrides = (f"++actor.fsdp_config.{key}" for key in ("strategy=fsdp", "sharding_strategy=hybrid_shard"))
    cfg = compose_config("metaworld_ppo_mlp", [*SIZES, "async.mode=off", *overrides])
    with pytest.raises(ValueError, match="device_mesh to have ndim=2 but got 1"):
        actor_of(stock.EmbodiedFSDPActor, cfg)
