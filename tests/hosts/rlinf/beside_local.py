"""The local host's learner on the pieces that RLinf's actor gets."""

from dataclasses import replace

import torch

from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.learner import local_learner
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.observe.meters import BusyMeter
from tests.making import accept


def settings_of(cfg, settings):
    """What a config of RLinf's means here; episodes weigh the same, and dones say where they end."""
    algorithm, optim = cfg.algorithm, cfg.actor.optim
    return LocalSettings(
        algorithm="ppo" if algorithm.adv_type == "gae" else "grpo",
        asynchrony=settings.asynchrony,
        total_envs=settings.plan.total_envs,
        horizon=settings.horizon,
        rollout_epochs=settings.plan.rollout_epochs,
        group_size=settings.plan.group_size,
        global_batch_size=settings.global_batch_size,
        micro_batch_size=settings.micro_batch_size,
        update_epoch=settings.update_epoch,
        gamma=algorithm.gamma,
        lam=algorithm.gae_lambda,
        clip=algorithm.clip_ratio_high,
        value_clip=algorithm.value_clip,
        lr=optim.lr,
        value_lr=optim.value_lr,
        clip_grad=optim.clip_grad,
        weighting="episode",
    )


def payload_of(piece):
    """The piece as the local host records it."""
    fields = piece.payload
    inputs = {"states": fields["forward_inputs"]["states"], "actions": fields["actions"]}
    last = {"states": fields["bootstrap_inputs"]["states"], "actions": fields["actions"][-1:]}
    return replace(
        piece,
        payload={
            "forward_inputs": inputs,
            "bootstrap_inputs": last,
            "prev_logprobs": fields["prev_logprobs"].sum(dim=-1),
            "prev_values": fields["prev_values"][..., 0],
            "rewards": fields["rewards"][..., 0],
            "ended": fields["dones"][..., 0],
            "truncated": torch.zeros_like(fields["dones"][..., 0]),
            "versions": fields["versions"][..., 0].long(),
        },
    )


def train(cfg, settings, weights, batches):
    """(Gradients before every optimizer step, by name; weights after all) of `batches` of pieces."""
    model = GaussianPolicy(state_dim=39, action_dim=4)
    model.load_state_dict(weights)
    learner = local_learner(settings_of(cfg, settings), model, BusyMeter())
    for index, pieces in enumerate(batches):
        learner.begin(index)
        accept(learner, [payload_of(piece) for piece in pieces])
        learner.finish()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
