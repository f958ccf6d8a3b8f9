"""Models that RLinf builds by name: those of the `rlinf_async.models` entry points."""

from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

import torch
from rlinf.models import register_model
from rlinf.models.embodiment.base_policy import BasePolicy

from rlinf_async.policies.smol_vla import ActionDistribution, SmolVLA, SmolVLASettings, Tokens, tokenise

ENTRY_POINTS = "rlinf_async.models"


def register_models() -> None:
    """Make every entry of `rlinf_async.models` a `model_type` of RLinf. May be called again."""
    for entry in entry_points(group=ENTRY_POINTS):
        register_model(entry.name, _Builder(entry), category="embodied", force=True)


class _Builder:
    """Imports a model's builder only when RLinf asks for the model."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __call__(self, cfg: Any, torch_dtype: torch.dtype | None) -> torch.nn.Module:
        return self._entry.load()(cfg, torch_dtype)


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


def scored(
    output: ActionDistribution, actions: torch.Tensor, *, logprobs: bool, entropy: bool, values: bool
) -> dict[str, torch.Tensor]:
    """What RLinf asks a policy about stored `actions`, of [B, chunks * action_dim]."""
    scores = {}
    if logprobs:
        scores["logprobs"] = output.log_prob(actions.view_as(output.mean))
    if entropy:
        scores["entropy"] = output.entropy()
    if values:
        scores["values"] = output.value
    return scores


def build_smol_vla(cfg: Any, torch_dtype: torch.dtype | None) -> SmolVLAPolicy:
    """Build the policy from an `actor.model` section; keys that SmolVLASettings does not know are RLinf's.

    Weights are random; the worker's seed decides them, and RLinf's first weight sync equalises them.
    """
    known = {field.name: cfg[field.name] for field in fields(SmolVLASettings) if field.name in cfg}
    policy = SmolVLAPolicy(SmolVLASettings(**known))
    return policy if torch_dtype is None else policy.to(torch_dtype)
