"""A small policy that matches flows, with the answers and the pass of RLinf's pi0 that NFT needs.

Nothing is drawn: the noise, and the denoise step that is kept, follow from the observation and its row. So
runs are equal number by number, whatever their processes have drawn before.
"""

from types import SimpleNamespace

import torch
from torch import nn

STEPS, HIDDEN = 4, 32


class FlowPolicy(nn.Module):
    """Velocities by an MLP of the state, the noisy action chunk and its time."""

    def __init__(self, obs_dim: int, chunk: int, action_dim: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_steps=STEPS)
        self._shape = (chunk, action_dim)
        size = chunk * action_dim
        self.net = nn.Sequential(nn.Linear(obs_dim + size + 1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, size))
        draw = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2, generator=draw)

    def forward(self, forward_type=None, **kwargs):
        if getattr(forward_type, "value", forward_type) != "nft":
            raise NotImplementedError(f"no pass {forward_type!r}: this policy has velocities alone")
        inputs, states = kwargs["nft_inputs"], kwargs["forward_inputs"]["states"]
        return {"v_theta": self._velocity(states, inputs["x_t"], inputs["timesteps"])}

    def _velocity(self, states, x_t, time):
        flat = self.net(torch.cat([states, x_t.flatten(1), time.reshape(-1, 1).to(x_t)], dim=1))
        return flat.reshape(len(states), *self._shape)

    @torch.no_grad()
    def predict_action_batch(self, env_obs, mode="train", **_):
        states = env_obs["states"].to(next(self.parameters()).device).float()
        count = self._shape[0] * self._shape[1]
        # Members of a group begin in one state: their rows in the batch tell them apart.
        seen = states.sum(dim=1, keepdim=True) + torch.arange(len(states))[:, None]
        x = torch.sin(997 * seen + torch.arange(count)).reshape(-1, *self._shape)
        kept = (seen.squeeze(1).abs() * 997).long() % STEPS
        schedule = torch.linspace(1, 0, STEPS + 1)
        fields = {name: torch.zeros_like(x) for name in ("nft_xcur", "nft_v", "nft_xnext")}
        for index in range(STEPS):
            v = self._velocity(states, x, schedule[index].expand(len(x)))
            after = x - v * (schedule[index] - schedule[index + 1])
            is_kept = (kept == index)[:, None, None]
            for name, value in (("nft_xcur", x), ("nft_v", v), ("nft_xnext", after)):
                fields[name] = torch.where(is_kept, value, fields[name])
            x = after
        inputs = {
            "states": states,
            "action": x.flatten(1),
            "model_action": x.flatten(1),
            **fields,
            "nft_step_index": kept,
            "nft_noise_level": torch.zeros(len(x)),
            "nft_x0": x,
        }
        # As pi0 without noise: log-probabilities that say nothing, and no critic.
        result = {"prev_logprobs": torch.zeros_like(x), "prev_values": torch.zeros(len(x), 1)}
        return x, {**result, "forward_inputs": inputs}


def build(cfg, torch_dtype):
    return FlowPolicy(cfg["obs_dim"], cfg["num_action_chunks"], cfg["action_dim"])
