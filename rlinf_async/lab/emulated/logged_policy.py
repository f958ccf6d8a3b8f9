"""Any policy of RLinf or of this package, with a log of its passes."""

from __future__ import annotations

import secrets
from typing import Any

import torch
from omegaconf import OmegaConf
from rlinf.models import get_model
from rlinf.models.embodiment.base_policy import BasePolicy
from torch import nn

from rlinf_async.lab.emulated.policy import pass_of
from rlinf_async.observe.spans import SpanLog

MAX_DECISIONS = 10**9
"""Numbers of decisions that a process has for itself."""
MAX_PROCESSES = 10**6
"""Blocks of such numbers; all numbers stay below those that a reader of spans takes for damage (1e15)."""


class LoggedPolicy(nn.Module, BasePolicy):
    """Passes every call on to `inner`, and numbers every decision, so that the learner can recognise samples.

    Numbers differ between decisions of one process, and begin at a random number in each process.
    `micro_batches` counts the micro-batches that the weights have been trained on, and is published with
    them.
    """

    def __init__(self, inner: Any, log: SpanLog) -> None:
        super().__init__()
        self.inner = inner
        self._log, self._acts = log, False
        # Not of torch's generator: the run draws the same numbers with the log and without it.
        self._next_number = secrets.randbelow(MAX_PROCESSES) * MAX_DECISIONS
        self.micro_batches: torch.Tensor
        self.register_buffer("micro_batches", torch.zeros(1, dtype=torch.int64))

    def predict_action_batch(self, env_obs: dict[str, Any], **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        size, self._acts = len(env_obs["states"]), True
        with self._log.span("act", size=size):
            actions, result = self.inner.predict_action_batch(env_obs=env_obs, **kwargs)
        result["forward_inputs"]["made_by"] = self.micro_batches.repeat(size, 1)
        result["forward_inputs"]["sample_number"] = torch.arange(size).unsqueeze(1) + self._next_number
        self._next_number += size
        return actions, result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Dispatch a call as RLinf's policies do."""
        return BasePolicy.forward(self, *args, **kwargs)

    def default_forward(self, forward_inputs: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, Any]:
        trains = torch.is_grad_enabled()
        facts: dict[str, Any] = {"size": len(forward_inputs["action"])}
        if trains:
            facts["samples"] = forward_inputs["sample_number"].flatten().tolist()
            facts["oldest"] = int(forward_inputs["made_by"].min())
            self.micro_batches += 1
        with self._log.span("train" if trains else pass_of(acts=self._acts), **facts):
            return self.inner.default_forward(forward_inputs=forward_inputs, **kwargs)


def build_logged(cfg: Any, torch_dtype: torch.dtype | None) -> LoggedPolicy:
    """Build the model of the type `cfg.logged` as RLinf does, with the precision `cfg.precision`."""
    inner = get_model(OmegaConf.merge(cfg, {"model_type": cfg.logged}))
    return LoggedPolicy(inner, SpanLog(cfg.get("service_log")))
