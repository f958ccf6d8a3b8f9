"""RLinf's actor and ours beside each other on the same trajectories, without Ray.

`run_cases` starts one process per learner rank. Each builds real actors: RLinf's FSDP-wrapped MLP
policy, optimizer and losses over gloo on the CPU. Only what needs a Ray cluster is replaced, and the
device of FSDP1, which RLinf takes for an accelerator.
"""

import gc
import os
import socket
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from rlinf.data.embodied_io_struct import convert_trajectories_to_batch
from rlinf.hybrid_engines.fsdp import FSDPModule
from rlinf.hybrid_engines.fsdp.strategy import fsdp as fsdp1
from rlinf.scheduler import Worker
from rlinf.scheduler.hardware import AcceleratorType
from rlinf.workers.actor import fsdp_actor_worker as stock
from torch.distributed.tensor import DTensor

from benchmarks.learning.fsdp1_on_cpu import OnCpu
from rlinf_async.compose import compose_config
from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.premise import Premise
from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.kit import scoring
from rlinf_async.hosts.kit.scoring import recompute
from rlinf_async.hosts.rlinf.actor_worker import StreamingActorWorker
from rlinf_async.hosts.rlinf.config import resolve, write_back
from rlinf_async.hosts.rlinf.exactness import exactness
from rlinf_async.hosts.rlinf.learner import Snapshot
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.hosts.rlinf.worker_process import provide_cpu_platform
from rlinf_async.observe.meters import BusyMeter
from tests.hosts.rlinf import beside_local
from tests.hosts.rlinf.synthetic import Case, act_by, fields, in_order, pieces, trajectories
from tests.making import accept

SIZES = (
    "~warm_start",
    "env.train.total_num_envs=16",
    "env.train.rollout_epoch=2",
    "env.train.max_episode_steps=6",
    "rollout.pipeline_stage_num=4",
    "actor.micro_batch_size=16",
    "actor.global_batch_size=192",
)
"""Four shards of four environments, two rollout epochs, six decisions: 192 samples, one optimizer step."""

START_METHOD = "spawn" if torch.cuda.is_available() else "fork"
"""Ranks that are forked need not import RLinf again; a process that has used CUDA cannot be."""


@dataclass
class Training:
    """What one actor did, over all batches of a case.

    All parameters are one vector: the shards of rank 0, then those of rank 1.
    """

    start: torch.Tensor
    gradients: list[torch.Tensor] = field(default_factory=list)
    """Before every optimizer step and before they are clipped, which would hide a wrong scale."""
    weights: torch.Tensor | None = None
    numbers: list[list[torch.Tensor]] = field(default_factory=list)
    """[rank][micro-batch]: its samples."""
    valid: list[list[int]] = field(default_factory=list)
    """[rank][micro-batch]: how many of them RLinf's mask keeps."""
    lasts: list[bool] = field(default_factory=list)
    """Per micro-batch of this rank: whether it was the last of its optimizer step, as RLinf was told."""
    computed: list[list[tuple[bool, int]]] = field(default_factory=list)
    """[rank][pass]: whether it is for gradients, and its rows."""
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Per batch."""
    anchors: list[list[torch.Tensor]] = field(default_factory=list)
    """[rank][recomputation]: log-probabilities of the policy that began the batch."""
    published: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """Per batch: what inference would get after it, the weights of all ranks."""

    @classmethod
    def of_all_ranks(cls, records):
        return cls(
            start=torch.cat([record.start for record in records]),
            gradients=[torch.cat(shards) for shards in zip(*(r.gradients for r in records), strict=True)],
            weights=torch.cat([record.weights for record in records]),
            numbers=[numbers for record in records for numbers in record.numbers],
            valid=[valid for record in records for valid in record.valid],
            computed=[computed for record in records for computed in record.computed],
            metrics=records[0].metrics,
            anchors=[anchors for record in records for anchors in record.anchors],
            published=records[0].published,
        )


def run_cases(ranks, cases, directory, *, run=None):
    """{case: {"exactness": claims, "settings": settings, trainer: Training}}, or what `run` makes of a case.

    `run(case, rank, ranks, known)` is called in each rank; `known` is a memory that all its calls share.
    An error in a rank is raised here, with its traceback.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        torch.multiprocessing.start_processes(
            _rank, args=(ranks, port, cases, directory, run), nprocs=ranks, start_method=START_METHOD
        )
    records = [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
    return {case.name: _joined([record[case.name] for record in records]) for case in cases}


def _joined(outcomes):
    found = {name: [outcome[name] for outcome in outcomes] for name in outcomes[0]}
    trainings = {name for name, values in found.items() if isinstance(values[0], Training)}
    return {n: Training.of_all_ranks(v) if n in trainings else v[0] for n, v in found.items()}


def _rank(rank, ranks, port, cases, directory, run):
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gc.freeze()  # RLinf collects garbage after every batch; what was imported need not be searched each time
    known = {}
    with without_ray(rank, ranks):
        outcomes = {case.name: (run or _run)(case, rank, ranks, known) for case in cases}
    torch.save(outcomes, directory / f"{rank}.pt")
    dist.destroy_process_group()


@contextmanager
def without_ray(rank, ranks):
    """Real workers may be built in this process, as rank `rank`."""

    def start(self):
        self._rank, self._world_size = rank, ranks
        self._accelerator_type = AcceleratorType.NO_ACCEL
        self._timer_metrics, self._stacklevel = {}, 1

    # A Ray worker process has no accelerator by its environment; here a machine's own is to be ignored.
    Worker.torch_platform = Worker.torch_device_type = None
    provide_cpu_platform(Worker)
    names = ("Cluster", "HybridComponentPlacement", "WeightSyncer")
    with (
        mock.patch.object(Worker, "__init__", start),
        mock.patch.object(fsdp1, "FSDP", OnCpu),
        mock.patch.multiple(stock, **dict.fromkeys(names, mock.DEFAULT)) as made,
    ):
        made["HybridComponentPlacement"].return_value.get_world_size.return_value = 1
        yield


@dataclass(kw_only=True)
class Job:
    """What a trainer works on, in one rank."""

    case: Case
    cfg: DictConfig
    settings: RLinfSettings
    batches: list[dict[str, torch.Tensor]]
    rank: int
    done: dict[str, Any] = field(default_factory=dict)
    """What was trained before, on this rank."""


def _run(case, rank, ranks, known):
    """Train one case; `known` holds what RLinf's actor did in earlier ones, which may be the same."""
    cfg = compose_config(f"metaworld_{case.algorithm}_mlp", [*SIZES, *case.overrides])
    settings = resolve(cfg, sizes={"env": 1, "rollout": 1, "actor": ranks})
    make = partial(fields, settings.plan, settings.horizon, rewards=case.rewards)
    batches = [make(seed=seed) for seed in range(case.batches)]
    job = Job(case=case, cfg=cfg, settings=settings, batches=batches, rank=rank)
    if not case.alone:
        if case.stock not in known or case.on_policy:
            known[case.stock] = _train_stock(job)
        job.done["stock"] = known[case.stock]
    for name in ("ours", *case.others):
        job.done[name] = TRAINERS[name](job)
    claims = exactness(RLinfView.of(OmegaConf.to_container(cfg, resolve=True)), settings)
    return {"exactness": claims, "settings": settings, **job.done}


def actor_of(worker, cfg):
    """An actor of class `worker`, with the initial weights that every other one of this config has."""
    torch.manual_seed(cfg.actor.seed)  # as our actor does: the same initial weights on every rank
    actor = worker(OmegaConf.create(OmegaConf.to_container(cfg)))
    actor.init_worker()
    actor.model.train()
    # RLinf's losses want float32, which its MLP policy does not give when FSDP computes in bfloat16.
    actor.model.register_forward_hook(lambda model, inputs, output: map_tensors(torch.Tensor.float, output))
    return actor


def _train_stock(job, *, advantages=None, order=None, alter=None):
    """RLinf's actor; `advantages` and `order` may replace its advantages and its order of samples, `alter`
    changes its micro-batches.
    """
    actor = actor_of(stock.EmbodiedFSDPActor, job.cfg)
    training = watched(actor, alter)
    for batch in job.batches:
        if job.case.on_policy:
            act_by(actor, batch)
        received = convert_trajectories_to_batch(trajectories(job.settings.plan, batch, job.rank))
        actor.rollout_batch = actor._process_received_rollout_batch(received)
        rollout = advantages(actor) if advantages else actor.compute_advantages_and_returns()
        with order(actor) if order else nullcontext():
            named = {"rollout": rollout, "train": actor.run_training()}
        training.metrics.append(
            {f"{kind}/{name}": float(value) for kind in named for name, value in named[kind].items()}
        )
    return ended(actor, training)


def _train_ours(job, *, alter=None):
    cfg, settings = job.cfg.copy(), job.settings
    write_back(cfg, settings)
    actor = actor_of(StreamingActorWorker, cfg)
    training = watched(actor, alter)
    learner, snapshot = learner_of(actor, settings, examined=job.case.examined), Snapshot(actor)
    for index, batch in enumerate(job.batches):
        arriving = in_order(_pieces(job, index, batch), job.case.order)
        actor.set_global_step(index)
        together = job.case.together if settings.asynchrony.streamer.enabled else len(arriving)
        learner.begin(index)
        with noting_anchors(training):
            for start in range(0, len(arriving), together):
                accept(learner, arriving[start : start + together])
        training.metrics.append(learner.finish())
        taken = snapshot.take()
        training.published.append({n: tensor.clone() for n, tensor in taken.tensors.items()} if taken else {})
    return ended(actor, training)


def learner_of(actor, settings, *, examined=False):
    """Our learner; unless `examined`, what is made up passes for what the policy thought."""
    learner = actor.make_learner(settings, BusyMeter())
    if not examined:
        learner.training.premise = Premise()
    return learner


@contextmanager
def noting_anchors(training):
    def note(rollout, *arguments, **keywords):
        recompute(rollout, *arguments, **keywords)
        training.anchors[0].append(rollout["proximal_logprobs"].clone())

    with mock.patch.object(scoring, "recompute", note):
        yield


def _pieces(job, index, batch):
    return pieces(job.settings.plan, batch, job.rank, index=index, lag=job.case.lag)


def _train_local(job):
    """The local host's learner, from the weights with which RLinf's actor started."""
    actor = actor_of(stock.EmbodiedFSDPActor, job.cfg)
    names = [name for name, _ in actor.model.named_parameters()]
    start = {name: tensor.full_tensor().clone() for name, tensor in actor.model.state_dict().items()}
    batches = [_pieces(job, index, batch) for index, batch in enumerate(job.batches)]
    trained = beside_local.train(job.cfg, job.settings, start, batches)
    weights = [torch.cat([state[name].flatten() for name in names]) for state in (start, trained)]
    return Training(start=weights[0], weights=weights[1])


def _by_the_batch_before(job):
    """RLinf's actor in our order, but that the first optimizer step of a batch has advantages that are
    normalised by the moments of the batch before, in float64.
    """
    moments, left = [], 0

    def advantages(actor):
        nonlocal left
        compute = partial(stock.calculate_adv_and_returns, normalize_advantages=False)
        with mock.patch.object(stock, "calculate_adv_and_returns", compute):
            actor.compute_advantages_and_returns()
        raw = actor.rollout_batch["advantages"].double()
        valid = raw.numpy()[actor.rollout_batch["loss_mask"].numpy()]
        moments.append((float(valid.mean()), float(valid.std(ddof=1))))
        mean, deviation = moments[max(0, len(moments) - 2)]
        actor.rollout_batch["by_the_batch_before"] = ((raw - mean) / (deviation + 1e-5)).float()
        left = actor.gradient_accumulation
        return actor.compute_advantages_and_returns()

    def alter(micro_batch):
        nonlocal left
        left -= 1
        return {
            **micro_batch,
            "advantages": micro_batch["by_the_batch_before" if left >= 0 else "advantages"],
        }

    return _train_stock(job, advantages=advantages, order=_our_order(job), alter=alter)


def _in_our_order(job):
    """RLinf's actor, its shuffle replaced by the order in which our learner trained the first pass."""
    return _train_stock(job, order=_our_order(job))


def _our_order(job):
    trained = torch.cat(job.done["ours"].numbers[0]).flatten().split(job.settings.update_epoch * _size(job))
    batches = iter(trained)

    def order(actor):
        held = actor.rollout_batch["forward_inputs"]["number"].flatten().tolist()
        place = {number: index for index, number in enumerate(held)}
        chosen = torch.tensor([place[number] for number in next(batches)[: len(held)].tolist()])
        return mock.patch.object(torch, "randperm", return_value=chosen)

    return order


def _size(job):
    """Samples of a batch on one rank."""
    return job.settings.samples_per_batch // job.settings.plan.learner_ranks


def _wrong_denominator(job):
    """Ours, but each micro-batch divided by its valid samples, where RLinf divides by all of them."""

    def by_valid_samples(samples):
        share = samples["loss_mask"].float().mean()
        return {**samples, "loss_mask_sum": samples["loss_mask_sum"] * share}

    return _train_ours(job, alter=by_valid_samples)


TRAINERS = {
    "ours": _train_ours,
    "by the batch before": _by_the_batch_before,
    "in our order": _in_our_order,
    "wrong denominator": _wrong_denominator,
    "local": _train_local,
}


def watched(actor, alter=None):
    """Record what `actor` does from now on; `alter` changes its micro-batches."""
    lists = {name: [[]] for name in ("numbers", "valid", "anchors", "computed")}
    training = Training(start=_vector(actor.model.parameters()), **lists)
    step, train = actor.optimizer_step, actor.train_micro_batch

    def optimizer_step():
        training.gradients.append(_vector(actor.model.parameters(), gradients=True))
        return step()

    def train_micro_batch(micro_batch, metrics, *, is_last):
        held = getattr(actor, "held_inputs", HeldInputs())  # RLinf's own actor has all inputs in place
        inputs = held.with_inputs(micro_batch)["forward_inputs"]
        if "number" in inputs:
            training.numbers[0].append(inputs["number"])
        if "loss_mask" in micro_batch:
            training.valid[0].append(int(micro_batch["loss_mask"].sum()))
        training.lasts.append(is_last)
        train(alter(micro_batch) if alter else micro_batch, metrics, is_last=is_last)

    def note(model, inputs, output):
        training.computed[0].append((torch.is_grad_enabled(), len(output["logprobs"])))

    actor.model.register_forward_hook(note)
    actor.optimizer_step, actor.train_micro_batch = optimizer_step, train_micro_batch
    return training


def ended(actor, training):
    for module in actor.model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after a pass without gradients, parameters are left gathered
    training.weights = _vector(actor.model.parameters())
    return training


def _vector(parameters, *, gradients=False):
    """This rank's shard of all parameters or their gradients; where there is no gradient, zeros."""
    parts = []
    for parameter in parameters:
        tensor = parameter.grad if gradients else parameter.detach()
        tensor = torch.zeros_like(parameter.detach()) if tensor is None else tensor
        parts.append((tensor.to_local() if isinstance(tensor, DTensor) else tensor).flatten().clone())
    return torch.cat(parts)
