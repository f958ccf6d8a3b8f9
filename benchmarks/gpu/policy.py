"""A policy with the shape and cost of a vision-language-action model, in plain torch; weights are random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from rlinf_async.hosts.local.policy import ActorCritic, PolicyFactory

IMAGE_SIDE, PATCH_SIDE, COLOUR_CHANNELS = 64, 4, 3
"""Pixels of an image's side and of a patch's side, and channels. An image makes 256 tokens, as many as 224
pixels in patches of 14."""
IMAGE_NUMBERS = IMAGE_SIDE * IMAGE_SIDE * COLOUR_CHANNELS
IMAGE_TOKENS = (IMAGE_SIDE // PATCH_SIDE) ** 2
CHUNK_ACTIONS = 8
"""Actions of one decision."""
LEAST_PARAMS = 20_000


@dataclass(frozen=True)
class Size:
    """Width and depth of the transformer; a layer has 12 width^2 parameters."""

    width: int
    layers: int
    heads: int

    @classmethod
    def of(cls, params: int) -> Size:
        """Return the size with about `params` parameters, 64 times as wide as deep, rounded to whole heads.

        Raises:
            ValueError: `params` is less than `LEAST_PARAMS`.
        """
        if params < LEAST_PARAMS:
            raise ValueError(f"params={params} must be at least {LEAST_PARAMS}; nearest: {LEAST_PARAMS}")
        ideal = math.cbrt(params * 64 / 12)
        head = 64 if ideal >= 512 else 16
        width = head * max(1, round(ideal / head))
        return cls(width=width, layers=max(1, round(params / (12 * width**2))), heads=width // head)


class Block(nn.Module):
    """A transformer layer: attention of all tokens to all, then an MLP, each after a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens [B, tokens, width] to tokens of the same shape."""
        qkv = self.qkv(self.norms[0](tokens)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.transpose(1, 3).unbind(dim=2)
        seen = functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.out(seen.transpose(1, 2).flatten(-2))
        return tokens + self.mlp(self.norms[1](tokens))


class VlaPolicy(ActorCritic):
    """Maps a picture and a robot state to a chunk of Gaussian actions and a value.

    A state row is the flat picture, then the robot state. `act` and `evaluate` make one pass over the
    transformer. Outputs are float32, whatever the dtype of the parameters.
    """

    def __init__(self, *, state_dim: int, action_dim: int, size: Size) -> None:
        super().__init__()
        width = size.width
        self.patch_in = nn.Linear(PATCH_SIDE * PATCH_SIDE * COLOUR_CHANNELS, width)
        self.state_in = nn.Linear(state_dim - IMAGE_NUMBERS, width)
        self.queries = nn.Parameter(0.02 * torch.randn(CHUNK_ACTIONS, width))
        self.positions = nn.Parameter(0.02 * torch.randn(IMAGE_TOKENS + 1 + CHUNK_ACTIONS, width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(width)
        self.actor_mean = nn.Linear(width, action_dim // CHUNK_ACTIONS)
        self.actor_logstd = nn.Parameter(torch.full((action_dim,), -0.5))
        self.value_head = nn.Linear(width, 1)
        nn.init.normal_(self.actor_mean.weight, std=0.01)
        nn.init.normal_(self.value_head.weight, std=0.01)

    def act(
        self, states: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, values = self._read(states)
        actions = mean + self.actor_logstd.float().exp() * noise
        return actions, self._density(mean, actions), values

    def evaluate(self, states: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, values = self._read(states)
        return self._density(mean[: len(actions)], actions), values

    def _read(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean actions [..., A] and values [...] of states [..., S]."""
        hidden = self._tokens(states.flatten(0, -2).to(self.queries.dtype))
        hidden = self.norm(self.blocks(hidden)[:, IMAGE_TOKENS:])
        values = self.value_head(hidden[:, 0]).float().view(states.shape[:-1])
        mean = self.actor_mean(hidden[:, 1:]).float().flatten(1)
        return mean.view(*states.shape[:-1], -1), values

    def _tokens(self, states: torch.Tensor) -> torch.Tensor:
        side = IMAGE_SIDE // PATCH_SIDE
        picture = states[:, :IMAGE_NUMBERS].view(-1, side, PATCH_SIDE, side, PATCH_SIDE * COLOUR_CHANNELS)
        patches = self.patch_in(picture.transpose(2, 3).flatten(3).flatten(1, 2))
        felt = self.state_in(states[:, IMAGE_NUMBERS:])[:, None]
        queries = self.queries.expand(len(states), -1, -1)
        return torch.cat([patches, felt, queries], dim=1) + self.positions

    def _density(self, mean: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        log_std = self.actor_logstd.float()
        density = -0.5 * ((actions - mean) * torch.exp(-log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        return density.sum(dim=-1)


def vla(params: int, *, device: str, dtype: torch.dtype) -> PolicyFactory:
    """Return a factory of policies with about `params` parameters of `dtype` on `device`."""
    return partial(_build, size=Size.of(params), device=device, dtype=dtype)


def _build(*, state_dim: int, action_dim: int, size: Size, device: str, dtype: torch.dtype) -> ActorCritic:
    with torch.device(device):
        return VlaPolicy(state_dim=state_dim, action_dim=action_dim, size=size).to(dtype)
