"""Cases, and made-up trajectories as RLinf's channel and as our buffer hand them to a learner rank.

Fields are [epoch, T or T + 1, environment, ...] here. RLinf gets one `Trajectory` per part of a shard,
with the rollout epochs one after another in time; we get one `Piece` per part and epoch.
"""

from dataclasses import dataclass, replace

import torch
from rlinf.data.embodied_io_struct import Trajectory

from rlinf_async.core.tensors import map_tensors
from tests.making import piece, ticket

OBSERVATION, ACTION = 39, 4
LOG_STD = -0.5
"""The initial standard deviation of RLinf's MLP policy, whose initial mean is almost zero."""
SHIFT = 0.1
"""How far a behaviour log-probability is off per dimension: ratios of 0.8 to 1.2 are common, others occur."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration, and how its trajectories reach our learner."""

    name: str
    algorithm: str = "ppo"
    overrides: tuple[str, ...] = ()
    order: int | None = None
    """Seed of the order of arrival; None is the order of the synchronous loop."""
    together: int = 1
    """Pieces handed over at a time, while streaming."""
    rewards: str = "dense"
    batches: int = 1
    on_policy: bool = False
    """Whether the policy that acts is always the one that RLinf's actor trains on the batch."""
    lag: int = 0
    """How many versions ago the actions of every other environment were made."""
    others: tuple[str, ...] = ()
    """Trainers beside `stock` and `ours`."""
    examined: bool = False
    """Whether our learner examines its premise: what the policies thought of the actions is made up here."""
    alone: bool = False
    """Whether our learner trains without RLinf's actor beside it."""

    @property
    def stock(self):
        """What RLinf's actor sees of this case."""
        overrides = tuple(text for text in self.overrides if not text.startswith("async."))
        return replace(self, name="", overrides=overrides, order=None, together=1, lag=0, others=())


def fields(plan, horizon, *, rewards="dense", seed=0):
    """One global batch: episodes of every length from 1 to beyond the horizon, and junk after their ends."""
    draw = torch.Generator().manual_seed(seed)
    size = (plan.rollout_epochs, horizon, plan.total_envs)

    def normal(*shape, scale=1.0):
        return torch.randn(shape, generator=draw) * scale

    lengths = torch.randint(1, horizon + 2, (size[0], 1, size[2]), generator=draw)
    # The first half of the environments, which is rank 0's of two, has the longer episodes.
    lengths[:, :, : size[2] // 2] = torch.clamp(lengths[:, :, : size[2] // 2] + 2, max=horizon + 1)
    dones = (torch.arange(horizon + 1)[None, :, None] >= lengths)[..., None]
    action = normal(*size, ACTION, scale=float(torch.tensor(LOG_STD).exp()))
    logprobs = torch.distributions.Normal(0.0, torch.tensor(LOG_STD).exp()).log_prob(action)
    return {
        "states": normal(size[0], horizon + 1, size[2], OBSERVATION),
        "action": action,
        "prev_logprobs": logprobs + normal(*size, ACTION, scale=SHIFT),
        "prev_values": normal(size[0], horizon + 1, size[2], 1),
        "rewards": _rewards(rewards, size, lengths, draw),
        "dones": dones,
        "number": torch.arange(size[0] * size[1] * size[2]).reshape(*size, 1),
    }


def _rewards(kind, size, lengths, draw):
    if kind == "dense":
        return torch.randn((*size, 1), generator=draw)
    # One, once, at the end of about half of the episodes.
    last = torch.arange(size[1])[None, :, None] == lengths - 1
    success = torch.rand((size[0], 1, size[2]), generator=draw) < 0.5
    return (last & success).float()[..., None]


@torch.no_grad()
def act_by(actor, batch):
    """Make the actor's present policy the one that acted, and its critic the one that was asked."""
    states, action = batch["states"], batch["action"]
    # The action of the last observation is not looked at, but the model wants one.
    padded = torch.cat([action, action[:, -1:]], dim=1)
    output = actor.model(
        forward_inputs={"states": states.flatten(0, 2), "action": padded.flatten(0, 2)},
        compute_logprobs=True,
        compute_entropy=False,
        compute_values=True,
    )
    batch["prev_logprobs"] = output["logprobs"].reshape(padded.shape)[:, :-1].clone()
    batch["prev_values"] = output["values"].reshape(batch["prev_values"].shape)


def trajectories(plan, batch, rank):
    """What RLinf's actor of this rank receives, in the order of the environments."""
    return [
        Trajectory(
            **map_tensors(
                lambda tensor, at=slice(first, first + plan.piece_size): tensor[:, :, at].flatten(0, 1),
                _recorded(batch),
            )
        )
        for first, _, _ in parts(plan, rank)
    ]


def pieces(plan, batch, rank, *, index=0, lag=0):
    """The same trajectories as pieces of global batch `index`, in the order of the synchronous loop."""
    # The action of the last observation is not looked at, but what is recorded has one.
    last = {**map_tensors(lambda tensor: tensor[:, -1], _inputs(batch)), "states": batch["states"][:, -1]}
    made = []
    for epoch in range(plan.rollout_epochs):
        for first, shard, part in parts(plan, rank):
            at = slice(first, first + plan.piece_size)
            payload = map_tensors(lambda tensor, e=epoch, at=at: tensor[e, :, at], _recorded(batch))
            payload["versions"] = payload["versions"] + index
            payload["versions"][:, ::2] -= lag
            payload["bootstrap_inputs"] = map_tensors(
                lambda tensor, e=epoch, at=at: tensor[e : e + 1, at], last
            )
            of = ticket(shard=shard, batch=index, epoch=epoch, version=index)
            made.append(piece(of, part=part, rank=rank, size=plan.piece_size, payload=payload))
    return made


def in_order(arriving, seed):
    """Pieces in an order of arrival, each rank's its own; as they are without a seed."""
    if seed is None:
        return arriving
    draw = torch.Generator().manual_seed(1000 * seed + 10 * arriving[0].ticket.batch + arriving[0].rank)
    return [arriving[index] for index in torch.randperm(len(arriving), generator=draw)]


def parts(plan, rank):
    """(First environment, shard, part) of everything that this rank trains."""
    for shard in range(plan.shards):
        for part in range(plan.parts):
            if plan.learner_rank(shard, part) == rank:
                yield shard * plan.envs_per_shard + part * plan.piece_size, shard, part


def _recorded(batch):
    inputs = {"states", "action", "number", *_velocities(batch)}
    taken = {name: value for name, value in batch.items() if name not in inputs}
    return {
        **taken,
        "actions": batch["action"],
        "terminations": batch["dones"],
        "truncations": torch.zeros_like(batch["dones"]),
        "versions": torch.zeros(*batch["prev_logprobs"].shape[:3], 1),
        "forward_inputs": _inputs(batch),
    }


def _inputs(batch):
    """What `MLPPolicy.predict_action_batch` records, and the number of the sample, which no model reads."""
    return {
        "number": batch["number"],
        "action": batch["action"],
        "model_action": batch["action"],
        "states": batch["states"][:, :-1],
        **_velocities(batch),
    }


def _velocities(batch):
    """What a policy that matches flows records for RLinf's NFT."""
    return {name: value for name, value in batch.items() if name.startswith("nft_")}
