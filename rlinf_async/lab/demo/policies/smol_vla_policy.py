"""A small vision-language-action policy of a Hugging Face class, as a model that hosts build by name.

The architecture is that of SmolVLM, at a size that two CPU cores can train; the weights are random.
In the language model's sequence, the picture and the instruction come first, then the robot's state and one
query per future action; the outputs at the queries are the chunk of actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import SmolVLMConfig, SmolVLMModel

from rlinf_async.core.tensors import Tensors
from rlinf_async.lab.demo.policies.gaussian_policy import ActionDistribution, GaussianPolicy
from rlinf_async.lab.demo.policies.sizes import settings_of
from rlinf_async.lab.demo.policies.smol_vla_settings import (
    BYTE_TOKENS,
    PATCHES_PER_TOKEN_SIDE,
    SmolVLASettings,
)

PADDING_TOKEN = BYTE_TOKENS


class Tokens(NamedTuple):
    """Token ids (int64) and attention mask (bool), both [batch, instruction_length]."""

    ids: torch.Tensor
    mask: torch.Tensor


def tokenise(instructions: Sequence[str], length: int) -> Tokens:
    """Return instructions as UTF-8 bytes, cut or padded to `length`.

    The length is fixed, not that of the longest instruction, so that the result of a sample does not depend
    on the rest of its batch.
    """
    ids = torch.full((len(instructions), length), PADDING_TOKEN)
    for row, instruction in zip(ids, instructions, strict=True):
        encoded = list(instruction.encode()[:length])
        row[: len(encoded)] = torch.tensor(encoded, dtype=ids.dtype)
    return Tokens(ids, ids != PADDING_TOKEN)


def _language_model(settings: SmolVLASettings) -> SmolVLMConfig:
    """Return the Hugging Face configuration; `SmolVLASettings.parameters` counts its parameters."""
    length = settings.image_tokens + settings.instruction_length + 1 + settings.num_action_chunks
    return SmolVLMConfig(
        scale_factor=PATCHES_PER_TOKEN_SIDE,
        image_token_id=PADDING_TOKEN,  # never looked up: pictures are put in as embeddings
        vision_config={
            "image_size": settings.image_size,
            "patch_size": settings.patch_size,
            "hidden_size": settings.vision_width,
            "intermediate_size": 2 * settings.vision_width,
            "num_hidden_layers": settings.vision_layers,
            "num_attention_heads": settings.heads,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": BYTE_TOKENS + 1,
            "pad_token_id": PADDING_TOKEN,
            "hidden_size": settings.text_width,
            "intermediate_size": 2 * settings.text_width,
            "num_hidden_layers": settings.text_layers,
            "num_attention_heads": settings.heads,
            "max_position_embeddings": length,
        },
    )


class SmolVLA(nn.Module):
    """Maps a picture, an instruction and a state to a Gaussian over the next actions, and to a value.

    A sample's outputs do not depend on the other samples of its batch. Parameters with `value_head` in their
    names belong to the critic alone.
    """

    def __init__(self, settings: SmolVLASettings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.text_width
        self.vlm = SmolVLMModel(_language_model(settings))
        self.state_in = nn.Linear(settings.state_dim, width)
        self.queries = nn.Parameter(0.02 * torch.randn(settings.num_action_chunks, width))
        self.actor_mean = nn.Linear(width, settings.action_dim)
        log_std = torch.full((settings.num_action_chunks, settings.action_dim), settings.log_std)
        self.actor_logstd = nn.Parameter(log_std)
        value = nn.Linear(width, 1)
        self.value_head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), value)
        nn.init.normal_(self.actor_mean.weight, std=0.01)
        nn.init.zeros_(self.actor_mean.bias)
        nn.init.zeros_(value.weight)
        nn.init.zeros_(value.bias)

    def forward(self, images: torch.Tensor, tokens: Tokens, states: torch.Tensor) -> ActionDistribution:
        """Act on uint8 `images` [batch, size, size, 3] and `states` [batch, state_dim]."""
        size = self.settings.image_size
        if images.shape[1:] != (size, size, 3) or images.dtype != torch.uint8:
            raise ValueError(
                f"images must be uint8 [batch, {size}, {size}, 3], got {images.dtype} {list(images.shape)}"
            )
        hidden = self._read(images, tokens, states.to(self.queries.dtype))
        mean = self.actor_mean(hidden)
        std = self.actor_logstd.exp().expand_as(mean)
        return ActionDistribution(mean, std, self.value_head(hidden.mean(dim=1)))

    def _read(self, images: torch.Tensor, tokens: Tokens, states: torch.Tensor) -> torch.Tensor:
        """The language model's last hidden states at the queries, [batch, chunks, width]."""
        # The vision model takes an all-zero picture for padding and drops it; [-1, 1] has no exact zero.
        pixels = images.permute(0, 3, 1, 2).to(states.dtype) / 127.5 - 1.0
        features = self.vlm.get_image_features(pixels[:, None])
        # transformers 5 wraps the features that transformers 4 returned directly.
        features = getattr(features, "pooler_output", features)
        read = self.vlm.get_input_embeddings()(tokens.ids)
        felt = self.state_in(states)[:, None]
        queries = self.queries.expand(len(images), -1, -1)
        mask = torch.ones(len(images), self.settings.image_tokens, dtype=torch.bool, device=states.device)
        tail = mask.new_ones(len(images), 1 + queries.shape[1])
        output = self.vlm.text_model(
            inputs_embeds=torch.cat([features, read, felt, queries], dim=1),
            attention_mask=torch.cat([mask, tokens.mask, tail], dim=1),
            use_cache=False,
        )
        return output.last_hidden_state[:, -queries.shape[1] :]


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

    Weights are random, from the seed of the process; the first publication makes them equal in all processes.
    """
    policy = SmolVLAPolicy(settings_of(SmolVLASettings, cfg))
    return policy if torch_dtype is None else policy.to(torch_dtype)
