"""RLinf's actor and ours beside each other on trajectories of a real model: FSDP2, two ranks, without Ray.

An inference rank that has drawn weights of its own receives those of RLinf's actor as ours are published,
and acts by them; both actors then train on what it did.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import open_dict
from rlinf.data.embodied_io_struct import Trajectory, convert_trajectories_to_batch
from rlinf.models import get_model
from rlinf.workers.actor import fsdp_actor_worker as stock

from rlinf_async.compose import compose_config
from rlinf_async.core.tensors import slice_samples
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.config import resolve, write_back
from rlinf_async.hosts.rlinf.learner import Snapshot
from rlinf_async.ray_runtime.publication.weights import apply
from rlinf_async.wire.payloads import pack, unpack
from tests.hosts.rlinf.learners import actor_of, ended, learner_of, watched
from tests.hosts.rlinf.synthetic import parts
from tests.making import piece, ticket
from tests.vla.classes import inference, observations, rollout
from tests.vla.families import Family

ENVS, DECISIONS = 4, 2
SIZES = (
    *(f"env.{part}.total_num_envs={ENVS}" for part in ("train", "eval")),
    f"actor.global_batch_size={ENVS * DECISIONS}",
    "actor.micro_batch_size=2",
    "rollout.pipeline_stage_num=2",
    *(f"{part}.enable_offload=false" for part in ("actor", "rollout")),
)
"""Two shards, a rank's each: two micro-batches per rank make the one optimizer step of an update epoch."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Levels of ours that are compared with RLinf's actor."""

    name: str
    mode: str
    examined: bool = True
    """Whether our learner examines its premise."""
    family: Family
    place: Path
    """Where the model's files are."""
    configs: Path
    """RLinf's `examples/embodiment`."""


def run(case: Case, rank: int, ranks: int, known: dict[Any, Any]) -> dict[str, Any]:
    """Both trainings of one case, and how inference and learner agreed; in a process of `run_cases`."""
    os.environ.update(case.family.environment(case.place), EMBODIED_PATH=str(case.configs))
    modes = (f"async.mode={case.mode}", "++algorithm.update_epoch=1")
    given = [*case.family.overrides(case.place), *SIZES, *modes]
    cfg = compose_config(case.family.config, given, case.configs / "config")
    if "sampling_params" in cfg.rollout:
        with open_dict(cfg):  # as RLinf's validation does before a run
            cfg.rollout.sampling_params.setdefault("max_new_tokens", None)
    settings = resolve(cfg, sizes={"env": 1, "rollout": 1, "actor": ranks})
    if "stock" not in known:
        known["batch"], known["stock"] = _train_stock(cfg, settings, rank)
    ours = _train_ours(cfg, settings, known["batch"], rank, case.examined)
    return {"stock": known["stock"], "ours": ours}


def _train_stock(cfg: Any, settings: Any, rank: int) -> tuple[dict[str, Any], Any]:
    """RLinf's actor on a batch that its own policy has drawn; that batch, and what it did."""
    actor = actor_of(stock.EmbodiedFSDPActor, cfg)
    training, acted = watched(actor), _act(actor, cfg)
    trajectories = [_trajectory(acted, at) for at, _, _ in _mine(settings, rank)]
    received = convert_trajectories_to_batch(trajectories)
    actor.rollout_batch = actor._process_received_rollout_batch(received)
    actor.compute_advantages_and_returns()
    actor.run_training()
    return acted, ended(actor, training)


def _act(actor: Any, cfg: Any) -> dict[str, Any]:
    """What a policy does that starts with other weights and receives the actor's; the same on all ranks."""
    taken = Snapshot(actor).take()
    published = [pack(taken.tensors) if taken else None]
    dist.broadcast_object_list(published)
    random.seed(1)
    torch.manual_seed(1000)
    model = get_model(cfg.actor.model)
    apply(model, unpack(published[0]))
    shown = [observations(ENVS, seed=step, side=64) for step in range(DECISIONS + 1)]
    fields, last = rollout(inference(model, cfg), shown)
    chunk = cfg.actor.model.num_action_chunks
    dones = torch.zeros(DECISIONS + 1, ENVS, chunk, dtype=torch.bool)
    dones[1:, 1] = dones[-1] = True
    draw = torch.Generator().manual_seed(1)
    return {
        **fields,
        "rewards": torch.randn(DECISIONS, ENVS, chunk, generator=draw),
        "dones": dones,
        "terminations": dones,
        "truncations": torch.zeros_like(dones),
        "versions": torch.zeros(DECISIONS, ENVS, 1),
        "bootstrap_inputs": {name: value[None] for name, value in last.items()},
    }


def _mine(settings: Any, rank: int) -> list[tuple[slice, int, int]]:
    """(Environments, shard, part) of everything that this rank trains."""
    size = settings.plan.piece_size
    return [(slice(first, first + size), shard, part) for first, shard, part in parts(settings.plan, rank)]


def _trajectory(batch: dict[str, Any], at: slice) -> Trajectory:
    return Trajectory(**slice_samples(_recorded(batch), at.start, at.stop, dim=1))


def _recorded(batch: dict[str, Any]) -> Any:
    return {name: value for name, value in batch.items() if name != "bootstrap_inputs"}


def _piece(batch: dict[str, Any], rank: int, of: tuple[slice, int, int]) -> Any:
    at, shard, part = of
    payload = slice_samples(_recorded(batch), at.start, at.stop, dim=1)
    payload["bootstrap_inputs"] = slice_samples(batch["bootstrap_inputs"], at.start, at.stop, dim=1)
    return piece(ticket(shard=shard), part=part, rank=rank, size=at.stop - at.start, payload=payload)


def _train_ours(cfg: Any, settings: Any, batch: dict[str, Any], rank: int, examined: bool) -> Any:
    ours = cfg.copy()
    write_back(ours, settings)
    actor = actor_of(StreamingActorWorker, ours)
    training = watched(actor)
    learner = learner_of(actor, settings, examined=examined)
    learner.begin(0)
    for of in _mine(settings, rank):
        learner.accept([_piece(batch, rank, of)])
    training.metrics.append(learner.finish())
    return ended(actor, training)
