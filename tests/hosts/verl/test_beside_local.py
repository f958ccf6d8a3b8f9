"""The same trajectories, trained by veRL's engine and by the local host's learner."""

from dataclasses import replace

import pytest
import torch

from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.learner import LocalTraining
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.meters import BusyMeter
from tests.hosts.verl.engines import (
    ACTION,
    CHUNKS,
    OBSERVATION,
    learner,
    learner_of,
    pieces,
    rollout,
    settings,
    train_pieces,
    weights,
)

AS_LOCAL = (
    "actor_rollout_ref.actor.optim.weight_decay=0",
    "+actor_rollout_ref.actor.optim.override_optimizer_config={eps:1e-5}",
    "actor_rollout_ref.actor.clip_ratio_c=1e6",  # the local host has no dual clip
)
BATCHES = 3


def local_settings(of):
    return LocalSettings(
        algorithm="ppo" if of.estimator == "gae" else "grpo",
        asynchrony=of.asynchrony,
        total_envs=of.plan.total_envs,
        horizon=of.horizon,
        group_size=of.plan.group_size,
        global_batch_size=of.global_batch_size,
        micro_batch_size=of.micro_batch_size,
        update_epoch=of.update_epoch,
        gamma=of.gamma,
        lam=of.lam,
        value_clip=of.value_clip,
        lr=1e-3,
        value_lr=3e-4,
        horizon_ends=True,
    )


def as_local(one):
    """The piece as the local host records it."""
    fields = one.payload
    inputs = {"states": fields["forward_inputs"]["states"], "actions": fields["forward_inputs"]["action"]}
    last = fields.get("bootstrap_inputs", fields["forward_inputs"])["states"][-1:]
    payload = {
        "forward_inputs": inputs,
        "bootstrap_inputs": {"states": last, "actions": inputs["actions"][-1:]},
        "prev_logprobs": fields["prev_logprobs"].sum(dim=(-1, -2)),
        "prev_values": fields["prev_values"],
        **{name: fields[name] for name in ("rewards", "ended", "versions")},
        "truncated": torch.zeros_like(fields["ended"]),
    }
    return replace(one, payload=payload)


def empty_step(optimizer):
    """As the local host's optimizer takes one when it is built, which Adam counts."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


CASES = {
    "everything off": {"asynchrony": {"mode": "off"}, "global_batch_size": 32},
    "streamed": {"asynchrony": {"mode": "streamer"}},
    "off-policy": {"asynchrony": {"mode": "full"}},
    "interpolated": {"asynchrony": {"mode": "full", "advanced": {"proximal": "loglinear"}}},
    "groups": {
        "asynchrony": {"mode": "full"},
        "estimator": "grpo",
        "normalizes": False,
        "group_size": 4,
        "update_epoch": 2,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_both_hosts_make_the_same_of_the_same_trajectories(name):
    of = settings(**CASES[name])
    worker = learner(of, *AS_LOCAL, f"algorithm.adv_estimator={of.estimator}")
    empty_step(worker.engine.optimizer)
    model = GaussianPolicy(state_dim=OBSERVATION, action_dim=CHUNKS * ACTION)
    before = weights(worker)
    model.load_state_dict(before)
    local = StreamingLearner(
        LocalTraining(settings=local_settings(of), model=model),
        of,
        parameters=lambda: list(model.parameters()),
        busy=BusyMeter(),
    )
    made = [rollout(of, seed=seed) for seed in range(BATCHES)]
    if of.asynchrony.off_policy:
        for fields in made[1:]:
            fields["versions"][:, ::2] -= 1
    batches = [pieces(of, fields, batch=batch) for batch, fields in enumerate(made)]

    ours = train_pieces(learner_of(worker, of), batches)[-1]
    theirs = train_pieces(local, [[as_local(one) for one in arriving] for arriving in batches])[-1]

    after, expected = weights(worker), model.state_dict()
    assert max((after[name] - before[name]).abs().max() for name in before) > 1e-3
    assert max((after[name] - expected[name]).abs().max() for name in before) < 2e-5
    assert ours["train/actor/grad_norm"] == pytest.approx(theirs["train/actor/grad_norm"], rel=1e-3)
