"""A policy that takes the time of a large one: it sleeps, and computes with a few weights."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from rlinf_async.core.tensors import Tensors
from rlinf_async.lab.demo.policies.gaussian_policy import ActionDistribution, GaussianPolicy
from rlinf_async.lab.emulated.env import STATE_SIZE
from rlinf_async.lab.emulated.service import SAMPLE_NUMBER_BASE, holding
from rlinf_async.observe.spans import SpanLog

HIDDEN_UNITS = 16


class EmulatedPolicy(GaussianPolicy):
    """Acts on B environments in `act_fixed_s + act_sample_s * B` seconds; it takes time to score and train.

    A training pass takes `train_sample_s` a sample, forward and backward; a pass without gradients takes
    `score_share` of that. `ballast` gives the weights their size for publication. `micro_batches` counts the
    micro-batches that the weights have been trained on, and is published with them, so that the age of a
    sample does not depend on a host's numbering of versions. The policy acts on a device that simulators may
    share, the file `service_device`; it is trained on another device.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        # Read once: a read of the config takes longer than a small computation of torch.
        service = cfg.service
        self._act_fixed_s, self._act_sample_s = float(service.act_fixed_s), float(service.act_sample_s)
        self._train_sample_s, self._score_share = float(service.train_sample_s), float(service.score_share)
        self._log = SpanLog(cfg.get("service_log"))
        self._device = cfg.get("service_device")
        self._acts = False
        self._chunks, self._action_dim = int(cfg.num_action_chunks), int(cfg.action_dim)
        self.body = nn.Linear(STATE_SIZE, HIDDEN_UNITS)
        self.mean = nn.Linear(HIDDEN_UNITS, self._chunks * self._action_dim)
        self.log_std = nn.Parameter(torch.zeros(self._action_dim))
        self.value = nn.Linear(HIDDEN_UNITS, 1)
        # A buffer, not a parameter, so that an optimizer step takes no further time.
        self.register_buffer("ballast", torch.zeros(int(cfg.service.weights_mb * 1e6) // 4))
        self.micro_batches: torch.Tensor
        self.register_buffer("micro_batches", torch.zeros(1, dtype=torch.int64))

    def decide(self, env_obs: dict[str, Any]) -> tuple[ActionDistribution, Tensors]:
        states = env_obs["states"]
        size = len(states)
        self._acts = True
        with holding(self._device), self._log.span("act", size=size):
            time.sleep(self._act_fixed_s + self._act_sample_s * size)
            output = self._output(states)
        made_by = self.micro_batches.repeat(size, 1)
        return output, {"states": states, "images": env_obs["main_images"], "made_by": made_by}

    def score(self, forward_inputs: Tensors) -> ActionDistribution:
        states, trains = forward_inputs["states"], torch.is_grad_enabled()
        seconds = self._train_sample_s * (1.0 if trains else self._score_share)
        facts = _samples(forward_inputs) if trains else {"size": len(states)}
        with self._log.span("train" if trains else pass_of(acts=self._acts), **facts):
            time.sleep(seconds * len(states))
            self.micro_batches += int(trains)
            return self._output(states)

    def _output(self, states: torch.Tensor) -> ActionDistribution:
        features = torch.tanh(self.body(states.float() / 100.0))
        mean = self.mean(features).view(-1, self._chunks, self._action_dim)
        return ActionDistribution(mean, self.log_std.exp().expand_as(mean), self.value(features))


def pass_of(*, acts: bool) -> str:
    """Return the span kind of a pass without gradients: the learner's, or that of a policy that acts."""
    return "anchor" if acts else "score"


def _samples(forward_inputs: Tensors) -> dict[str, Any]:
    """Return the numbers of a micro-batch's samples, and the `micro_batches` of the oldest sample."""
    env, rollout, decision = forward_inputs["states"][:, :3].long().unbind(dim=1)
    return {
        "size": len(env),
        "samples": ((env * SAMPLE_NUMBER_BASE + rollout) * SAMPLE_NUMBER_BASE + decision).tolist(),
        "oldest": int(forward_inputs["made_by"].min()),
    }


def build_emulated(cfg: Any, torch_dtype: torch.dtype | None) -> EmulatedPolicy:
    """Build the policy from a model section."""
    policy = EmulatedPolicy(cfg)
    return policy if torch_dtype is None else policy.to(torch_dtype)
