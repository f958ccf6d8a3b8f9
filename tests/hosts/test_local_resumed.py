"""A deterministic run that is interrupted at a checkpoint ends like one that is not, bit for bit.

The local host writes no checkpoints. Here its shards, inference ranks and learner do, by the buffer's own
files and as every host has it: beside weights and optimizer nothing of the past is kept.
"""

import asyncio
import copy
import inspect
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from rlinf_async.core.buffer import Ledger
from rlinf_async.hosts.local.inference import InferenceRank
from rlinf_async.hosts.local.learner import _optimizer, local_learner
from rlinf_async.hosts.local.settings import SETTING_KINDS
from rlinf_async.hosts.local.shard import Noise, RolloutRecorder, Shard
from rlinf_async.hosts.local.trainer import LearnerThread, LocalRun
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.learner import WAITING_METRIC
from rlinf_async.loops.renewal import Renewal
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import trajectory_broker
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.checkpoints.saved_buffer import extended, resume_buffer, save_buffer
from tests.hosts.local_runs import same, small

pytestmark = pytest.mark.timeout(120)

EVERY = 2


@dataclass(frozen=True)
class Saved:
    """What a framework keeps of a step, and what it knows of the run until then."""

    step: int
    weights: dict
    optimizer: dict


@dataclass(frozen=True)
class Ended:
    weights: dict
    metrics: list
    ledger: Ledger
    saved: dict
    remark: str


class Renewable(Shard):
    """A shard of PointReach whose chance, after a renewal, is that of the step."""

    def rebuild_at(self, step):
        self._stage.env = PointReach(self.size, first=self._first, seed=100 + step)
        width = self.sizes["action_dim"]
        self._noise = Noise(first=self._first, size=self.size, width=width, seed=100 + step)


class SavingRun(LocalRun):
    """Saves into `folder`, and goes on from what it is given."""

    def begin(self, folder, training, saved):
        self.folder, self.training, self.saved, self.start, self.remark = folder, training, {}, 0, ""
        if saved is None:
            return
        self.start = saved.step
        self._model.load_state_dict(saved.weights)
        training._optimizer.load_state_dict(saved.optimizer)
        self._trajectories = broker = trajectory_broker(self._settings.run, version=saved.step)
        place = self.folder / str(saved.step)
        run = self._settings.run
        became = resume_buffer(place, saved.step, broker.gate, broker.buffer, run, lambda data: data)
        self.remark = extended(became, saved.step, run)

    async def _collect(self):
        recorder = partial(RolloutRecorder, settings=self._settings.run)
        await together(
            run_shard(
                shard=number,
                env=shard,
                policy=self._requests,
                trajectories=self._trajectories,
                recorder=recorder,
                before=Renewal(self._settings.run, shard.renew).before,
            )
            for number, shard in enumerate(self._shards)
        )
        self._requests.close()

    async def train(self):
        for rank in self._ranks:
            await rank.load(self.start, copy.deepcopy(self._model.state_dict()))
        return await super().train()

    async def _learn(self):
        for batch in range(self.start, self._settings.batches):
            metrics = await self._learner.train(batch, self._pieces)
            del metrics[WAITING_METRIC]  # a time
            self._metrics.append(metrics)
            await self._publish(batch + 1)
            if (batch + 1) % EVERY == 0:
                await self._save(batch + 1)

    async def _save(self, step):
        # The fastest that rollouts can be: all of those that may have begun have ended.
        await self._trajectories.collected(step + 1)

        async def opened(piece):
            return piece.payload

        place = self.folder / str(step)
        place.mkdir(exist_ok=True, parents=True)
        if not (place / "buffer").exists():
            buffer = self._trajectories.buffer
            await save_buffer(place, step, buffer, self._settings.run, opened)
        held = self._model.state_dict(), self.training._optimizer.state_dict()
        self.saved[step] = Saved(step, *copy.deepcopy(held))


def built(first, size):
    return PointReach(size, first=first, seed=3)


def trained(folder, *, lag, saved=None, save_every=EVERY, batches=9, **keys):
    """A run from its start, or from what was saved."""
    block = {"mode": "train", "deterministic": True, "train": {"max_staleness": lag}}
    keys = {"lr": 1e-2, **keys}
    settings = small(block, inference_ranks=2, batches=batches, micro_batch_size=40, seed=3, **keys)
    settings.__dict__["run"] = replace(settings.run, save_every=save_every)
    busy = {name: BusyMeter(width=2) for name in ("env", "inference", "learner")}
    with ExitStack() as stack:
        shards = [
            Renewable(number, settings=settings, build=built, busy=busy["env"])
            for number in range(settings.plan.shards)
        ]
        torch.manual_seed(0)
        model = GaussianPolicy(**shards[0].sizes, hidden=8)
        ranks = [InferenceRank(rank, model=model, busy=busy["inference"]) for rank in range(2)]
        learner = local_learner(settings, model, busy["learner"])
        thread = LearnerThread(learner, streaming=False)
        for each in (*shards, *ranks, thread):
            stack.enter_context(closing(each))
        run = SavingRun(
            settings,
            shards=shards,
            ranks=ranks,
            learner=thread,
            model=model,
            busy=busy,
            on_step=lambda *_: None,
        )
        run.begin(folder, learner.training, saved)
        result = asyncio.run(run.train())
        return Ended(result.weights, list(result.metrics), result.ledger, run.saved, run.remark)


@pytest.mark.parametrize("lag", [1, 3])
def test_a_run_interrupted_at_any_of_its_checkpoints_ends_like_one_that_was_not(lag, tmp_path):
    whole = trained(tmp_path, lag=lag)
    for step in (2, 4, 6):
        rest = trained(tmp_path, lag=lag, saved=whole.saved[step])
        assert same(rest.weights, whole.weights)
        assert rest.metrics == whole.metrics[step:]
        assert rest.ledger == whole.ledger


KEYS = {"lr": 3e-2, "value_lr": 3e-2, "clip_grad": 0.01}
"""The keys of the optimizer, and a value that makes other weights than the default."""


def test_every_key_of_the_optimizer_is_tried():
    """Those of a config by their names, and what the optimizer is built from."""
    served = {name for name in SETTING_KINDS if name.endswith("lr") or "clip_grad" in name}
    built_from = set(inspect.signature(_optimizer).parameters) - {"model"}
    assert served | built_from == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_of_the_optimizer_is_in_force_after_an_interruption(key, tmp_path):
    whole, usual = (trained(tmp_path / name, lag=1, **keys) for name, keys in _with_and_without(key))
    rest = trained(tmp_path / "with", lag=1, saved=whole.saved[4], **{key: KEYS[key]})
    assert same(rest.weights, whole.weights)
    assert rest.metrics == whole.metrics[4:]
    assert not same(usual.weights, whole.weights)


def _with_and_without(key):
    return ("with", {key: KEYS[key]}), ("without", {})


@pytest.mark.parametrize("lag", [1, 2])
def test_a_run_that_had_ended_and_is_extended_is_not_the_longer_one_and_says_so(lag, tmp_path):
    whole = trained(tmp_path / "whole", lag=lag)
    short = trained(tmp_path / "short", lag=lag, batches=4)
    rest = trained(tmp_path / "short", lag=lag, saved=short.saved[4])
    assert same(short.weights, whole.saved[4].weights)
    assert not same(rest.weights, whole.weights)
    assert f"the next {lag} steps are trained with a lag below {lag}" in rest.remark
    assert trained(tmp_path / "whole", lag=lag, saved=whole.saved[4]).remark == ""


def test_where_no_checkpoint_is_due_it_does_not(tmp_path):
    """What the first test sees is no accident of these sizes."""
    whole = trained(tmp_path, lag=1, save_every=0)
    rest = trained(tmp_path, lag=1, saved=whole.saved[4], save_every=0)
    assert not same(rest.weights, whole.weights)
