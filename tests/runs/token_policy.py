"""A tiny policy of tokens, with the calls of RLinf's OpenVLA-OFT: one layer over the state, for every token.

A checkpoint is a name: weights are drawn from a seed made of it. Tokens are drawn by numbers made of the
observation, so that the order of observations, and the process, do not matter.
"""

import zlib

import torch
from torch import nn

CHUNKS, DIMENSIONS, BINS = 2, 4, 5
TOKENS = CHUNKS * DIMENSIONS


class TokenPolicy(nn.Module):
    def __init__(self, states: int, checkpoint: str) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(zlib.crc32(checkpoint.encode()))
        self.head = nn.Linear(states, TOKENS * BINS)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(self.head.weight.shape, generator=draw))
            self.head.bias.copy_(torch.randn(self.head.bias.shape, generator=draw))

    def logprobs(self, states, temperature):
        logits = self.head(states).unflatten(-1, (CHUNKS, DIMENSIONS, BINS))
        return torch.log_softmax(logits / temperature, dim=-1)

    def forward(
        self,
        forward_inputs,
        compute_logprobs=False,
        compute_entropy=False,
        compute_values=False,
        use_cache=False,
        temperature=1.0,
        top_k=-1,
    ):
        assert compute_logprobs
        assert not compute_values
        assert not use_cache
        logprobs = self.logprobs(forward_inputs["states"], temperature)
        entropy = -(logprobs.exp() * logprobs).sum(-1) if compute_entropy else None
        chosen = logprobs.gather(-1, forward_inputs["action_tokens"].unsqueeze(-1)).squeeze(-1)
        # As OpenVLA-OFT does: one row of tokens for each sample.
        return {"logprobs": chosen.flatten(1), "entropy": entropy}

    @torch.inference_mode()
    def predict_action_batch(self, env_obs, mode="train", temperature=1.0, **_):
        states = env_obs["states"].to(self.head.weight.device).float()
        logprobs = self.logprobs(states, temperature)
        noise = torch.stack([gumbel(row) for row in states]).to(logprobs.device)
        tokens = (logprobs + noise).argmax(-1)
        chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).flatten(1)
        actions = tokens.float() / (BINS - 1) * 2 - 1
        inputs = {"states": states, "action_tokens": tokens}
        values = torch.zeros(len(states), 1)
        return actions, {"prev_logprobs": chosen, "prev_values": values, "forward_inputs": inputs}


def gumbel(state):
    draw = torch.Generator().manual_seed(zlib.crc32(state.cpu().numpy().tobytes()))
    uniform = torch.rand(CHUNKS, DIMENSIONS, BINS, generator=draw).clamp(1e-6, 1 - 1e-6)
    return -torch.log(-torch.log(uniform))


def build(cfg, torch_dtype):
    return TokenPolicy(cfg.obs_dim, str(cfg.model_path).rpartition("/")[2])
