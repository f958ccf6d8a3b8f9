"""The small vision-language-action policy, as a model that hosts build by name."""

from typing import Any

import torch

from rlinf_async.core.tensors import Tensors
from rlinf_async.lab.demo.policies.action_distribution import ActionDistribution
from rlinf_async.lab.demo.policies.gaussian_policy import GaussianPolicy
from rlinf_async.lab.demo.policies.sizes import settings_of
from rlinf_async.lab.demo.policies.smol_vla import SmolVLA, Tokens, tokenise
from rlinf_async.lab.demo.policies.smol_vla_settings import SmolVLASettings


class SmolVLAPolicy(GaussianPolicy, SmolVLA):  # type: ignore[misc]  # forward is a host's call, not SmolVLA's
    """SmolVLA behind the calls that hosts make."""

    def decide(self, env_obs: dict[str, Any]) -> tuple[ActionDistribution, Tensors]:
        """Act on `main_images` uint8 [B, S, S, 3], `states` [B, state_dim] and `task_descriptions`.

        Raises:
            ValueError: there are no pictures.
        """
        if env_obs.get("main_images") is None:
            raise ValueError("smol_vla needs pictures: set env.train.image_size, or a camera of the task")
        device = self.queries.device
        tokens = tokenise(env_obs["task_descriptions"], self.settings.instruction_length)
        inputs = {
            "images": env_obs["main_images"].to(device),
            "token_ids": tokens.ids.to(device),
            "attention_mask": tokens.mask.to(device),
            "states": env_obs["states"].to(device).float(),
        }
        return self.score(inputs), inputs

    def score(self, forward_inputs: Tensors) -> ActionDistribution:
        tokens = Tokens(forward_inputs["token_ids"], forward_inputs["attention_mask"])
        return SmolVLA.forward(self, forward_inputs["images"], tokens, forward_inputs["states"])


def build_smol_vla(cfg: Any, torch_dtype: torch.dtype | None) -> SmolVLAPolicy:
    """Build the policy from a model section.

    Weights are random; the seed of the process decides them, and the first publication equalises them.
    """
    policy = SmolVLAPolicy(settings_of(SmolVLASettings, cfg))
    return policy if torch_dtype is None else policy.to(torch_dtype)
