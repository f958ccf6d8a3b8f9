"""Learner ranks without Ray, and made-up trajectories as the recorder hands them to one."""

import multiprocessing
import os
import socket
from functools import cache

import torch
import torch.multiprocessing
from hydra import compose, initialize_config_module

from rlinf_async.config import AsyncConfig
from rlinf_async.core.premise import Premise
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.kit.sharded import whole
from rlinf_async.hosts.verl.learner_worker import LearnerWorker, actor_config, join_group, worker_config
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.hosts.verl.training import EngineTraining, engine_learner
from rlinf_async.observe.meters import BusyMeter
from tests.hosts.verl.configs import overridden
from tests.making import accept, piece, ticket

OBSERVATION, CHUNKS, ACTION = 5, 2, 3
STEPS, ENVS = 4, 8

BASE = [
    "critic.enable=false",
    "critic.optim.lr=3e-4",
    "algorithm.adv_estimator=gae",
    "algorithm.gamma=0.9",
    "algorithm.lam=0.8",
    "actor_rollout_ref.model.path=null",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "+actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap=[Linear]",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.actor.optim.clip_grad=0.5",
    "trainer.device=cpu",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=1",
    "+vla.model={model_type:gaussian_mlp,obs_dim:5,num_action_chunks:2,action_dim:3,add_value_head:true}",
    "+vla.ckpt_path=null",
]


@cache
def config(*overrides):
    """veRL's own configuration, with `BASE` and `overrides`."""
    if overrides:
        return overridden(config(), overrides)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=BASE)


def settings(**changes):
    """A batch of one rollout of 4 decisions of 8 environments, in two optimizer steps."""
    asynchrony = AsyncConfig.from_mapping(changes.pop("asynchrony", {"mode": "off"}))
    plan = {
        "total_envs": ENVS,
        "env_workers": 1,
        "inference_ranks": 1,
        "learner_ranks": 1,
        "shards_per_worker": 2,
        "group_size": changes.pop("group_size", 1),
    } | changes.pop("plan", {})
    known = {
        "asynchrony": asynchrony,
        "plan": ShardPlan(**plan),
        "horizon": STEPS,
        "batches": 10,
        "global_batch_size": 16,
        "micro_batch_size": 4,
        "update_epoch": 1,
        "max_batch_size": ENVS,
        "normalizes": True,
        "seed": 0,
        "steps_per_decision": CHUNKS,
        "action_dim": ACTION,
        "ratio_level": "chunk",
        "estimator": "gae",
        "gamma": 0.9,
        "lam": 0.8,
        "norm_by_std": True,
        "auto_reset": False,
        "value_clip": 0.5,
    }
    return VerlSettings(**known | changes)


def join(rank=0, ranks=1, port=None):
    """Be rank `rank` of a worker group, as its environment variables say."""
    port = free_port() if port is None else port
    found = {"RANK": rank, "WORLD_SIZE": ranks, "DIST_INIT_METHOD": f"tcp://127.0.0.1:{port}"}
    found |= {"MASTER_ADDR": "nowhere", "MASTER_PORT": port}  # veRL's workers ask for them
    os.environ.update({name: str(value) for name, value in found.items()})
    join_group()


def in_two_ranks(work, *arguments):
    """`work(rank, *arguments)` in two processes, whose imports a server has made once for all of them."""
    multiprocessing.set_forkserver_preload([__name__])
    torch.multiprocessing.start_processes(work, arguments, nprocs=2, start_method="forkserver")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def learner(of, *overrides, cls=LearnerWorker):
    """A learner rank of settings `of`, its engine built; all start with the same weights."""
    if not torch.distributed.is_initialized():
        join()
    cfg = config(*overrides)
    actor = actor_config(cfg, of)
    more = {"actor": actor, "algorithm": cfg.algorithm} if issubclass(cls, LearnerWorker) else {}
    worker = cls(config=worker_config(cfg, of, actor), **more)
    worker.reset()
    return worker


def training_of(worker, of, *, examined=False):
    """Training by a learner rank; unless `examined`, what is made up passes for what the policy thought."""
    training = EngineTraining(worker, of)
    if not examined:
        training.premise = Premise()
    return training


def learner_of(worker, of, *, examined=False):
    """The learner of a rank, likewise."""
    made = engine_learner(worker, of, BusyMeter())
    if not examined:
        made.training.premise = Premise()
    return made


def weights(worker):
    """All tensors of the policy, gathered, by name."""
    return {
        name: whole(tensor).detach().clone() for name, tensor in worker.engine.module.state_dict().items()
    }


def rollout(of, *, seed=0, ends=True):
    """Episodes of every length, and junk after their ends: fields of [T, B, ...]."""
    draw = torch.Generator().manual_seed(seed)
    steps, width = of.horizon, of.plan.total_envs

    def normal(*shape):
        return torch.randn(shape, generator=draw)

    lengths = torch.randint(1, steps + 2, (width,), generator=draw) if ends else torch.full((width,), 99)
    action = 0.6 * normal(steps, width, CHUNKS * ACTION)
    logprobs = torch.distributions.Normal(0.0, 0.6).log_prob(action)
    return {
        "forward_inputs": {"states": normal(steps, width, OBSERVATION), "action": action},
        "bootstrap_inputs": {"states": normal(1, width, OBSERVATION), "action": action[-1:]},
        "prev_logprobs": (logprobs + 0.1 * normal(*action.shape)).view(steps, width, CHUNKS, ACTION),
        "prev_values": normal(steps + 1, width),
        "rewards": normal(steps, width),
        "ended": torch.arange(steps + 1)[:, None] >= lengths,
        "versions": torch.zeros(steps, width, dtype=torch.int64),
    }


def pieces(of, fields, *, batch=0, rank=0):
    """`fields` as the pieces of global batch `batch` for learner rank `rank`."""
    plan, made = of.plan, []
    for shard in range(plan.shards):
        for part in range(plan.parts):
            if plan.learner_rank(shard, part) == rank:
                first = shard * plan.envs_per_shard + part * plan.piece_size
                at = slice(first, first + plan.piece_size)
                payload = map_tensors(lambda tensor, at=at: tensor[:, at], fields)
                payload["versions"] = payload["versions"] + batch
                if not of.asynchrony.recomputes:
                    del payload["bootstrap_inputs"]
                of_batch = ticket(shard=shard, batch=batch, version=batch)
                made.append(piece(of_batch, part=part, rank=rank, size=plan.piece_size, payload=payload))
    return made


def train(worker, of, batches, *, first=0, rank=0):
    """Metrics of each batch of fields, its pieces handed over one by one."""
    arriving = [pieces(of, fields, batch=batch, rank=rank) for batch, fields in enumerate(batches, first)]
    return train_pieces(learner_of(worker, of), arriving, first=first)


def train_pieces(trained, batches, *, first=0):
    """As `train`, of batches of pieces, by any host's learner."""
    found = []
    for batch, arriving in enumerate(batches, first):
        trained.begin(batch)
        for one in arriving:
            accept(trained, [one])
        found.append(trained.finish())
    return found


def same(ones, others):
    return ones.keys() == others.keys() and all(torch.equal(one, others[name]) for name, one in ones.items())


def farthest(ones, others):
    return max((one - others[name]).abs().max().item() for name, one in ones.items())
