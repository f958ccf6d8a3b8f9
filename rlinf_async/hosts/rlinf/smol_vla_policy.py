"""The small vision-language-action policy, as a model of RLinf."""

from dataclasses import fields
from typing import Any

import torch
from rlinf.models.embodiment.base_policy import BasePolicy

from rlinf_async.policies.action_distribution import ActionDistribution, scored
from rlinf_async.policies.smol_vla import SmolVLA, SmolVLASettings, Tokens, tokenise


class SmolVLAPolicy(SmolVLA, BasePolicy):
    """SmolVLA behind the two calls that RLinf makes: act on observations, and score stored actions.

    What `predict_action_batch` puts into `forward_inputs` is all that `forward` needs, as tensors whose
    first axis is the batch; `forward` then gives the same log-probabilities for the same weights.
    """

    def predict_action_batch(
        self, env_obs: dict[str, Any], mode: str = "train", do_sample: bool = True, **_: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Act on `main_images` uint8 [B, S, S, 3], `states` [B, state_dim] and `task_descriptions`.

        RLinf says that it evaluates by `mode="eval"` or, to models it does not know, by
        `do_sample=False`; the mean action is taken then.

        Returns:
            Actions [B, chunks, action_dim]; and prev_logprobs of that shape, prev_values [B, 1] and
            forward_inputs.
        """
        if env_obs.get("main_images") is None:
            raise ValueError("smol_vla needs pictures: set env.train.image_size, or a camera of the task")
        device = self.queries.device
        images, states = env_obs["main_images"].to(device), env_obs["states"].to(device).float()
        tokens = tokenise(env_obs["task_descriptions"], self.settings.instruction_length)
        tokens = Tokens(tokens.ids.to(device), tokens.mask.to(device))
        with torch.no_grad():
            output = SmolVLA.forward(self, images, tokens, states)
            sampled = mode == "train" and do_sample
            actions = torch.normal(output.mean, output.std) if sampled else output.mean
            logprobs = output.log_prob(actions)
        forward_inputs = {
            "images": images,
            "token_ids": tokens.ids,
            "attention_mask": tokens.mask,
            "states": states,
            "action": actions.flatten(1),
        }
        result = {
            "prev_logprobs": logprobs,
            "prev_values": output.value,
            "forward_inputs": forward_inputs,
        }
        return actions, result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """RLinf's dispatcher; without it `torch.nn.Module` would find SmolVLA's own forward."""
        return BasePolicy.forward(self, *args, **kwargs)

    def default_forward(
        self,
        forward_inputs: dict[str, torch.Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = True,
        compute_values: bool = True,
        **_: Any,
    ) -> dict[str, torch.Tensor]:
        """Score stored actions: logprobs and entropy [B, chunks, action_dim], values [B, 1]."""
        tokens = Tokens(forward_inputs["token_ids"], forward_inputs["attention_mask"])
        output: ActionDistribution = SmolVLA.forward(
            self, forward_inputs["images"], tokens, forward_inputs["states"]
        )
        return scored(
            output,
            forward_inputs["action"],
            logprobs=compute_logprobs,
            entropy=compute_entropy,
            values=compute_values,
        )


def build_smol_vla(cfg: Any, torch_dtype: torch.dtype | None) -> SmolVLAPolicy:
    """Build the policy from an `actor.model` section; keys that SmolVLASettings does not know are RLinf's.

    Weights are random; the worker's seed decides them, and RLinf's first weight sync equalises them.
    """
    known = {field.name: cfg[field.name] for field in fields(SmolVLASettings) if field.name in cfg}
    policy = SmolVLAPolicy(SmolVLASettings(**known))
    return policy if torch_dtype is None else policy.to(torch_dtype)
