"""A rollout worker with an engine of its own: the policy that acts changes with every version."""

import asyncio
from contextlib import nullcontext

import pytest
import torch
from ray.util.tracing.tracing_helper import _inject_tracing_into_class
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

from rlinf_async.hosts.rlinf.own_engine import overrides
from rlinf_async.hosts.rlinf.replacements import replacement
from tests.hosts.rlinf import workers
from tests.hosts.rlinf.own_engines import OwnEngineWorker
from tests.hosts.rlinf.test_beside_rlinf import FIELDS
from tests.hosts.rlinf.test_rollout_worker import asked, observation
from tests.hosts.rlinf.workers import (
    Reckoner,
    collected_by_rlinf,
    collected_by_us,
    config,
    in_one_process,
)


@pytest.fixture(scope="module", autouse=True)
def process():
    with in_one_process():
        yield


@pytest.mark.parametrize("method", ["sync_model_from_actor", "get_bootstrap_values", "set_global_step"])
def test_a_class_of_an_actor_overrides_what_its_own_class_does_and_not_what_ray_wraps(method):
    class Plain(MultiStepRolloutWorker):
        pass

    class Own(MultiStepRolloutWorker):
        async def sync_model_from_actor(self): ...
        def get_bootstrap_values(self): ...
        def set_global_step(self): ...

    for cls in (Plain, Own):
        _inject_tracing_into_class(cls)  # as in the process of every actor
    stock = getattr(MultiStepRolloutWorker, method, None)
    assert getattr(Plain, method, None) is not stock or stock is None
    assert not overrides(Plain, MultiStepRolloutWorker, method)
    assert overrides(Own, MultiStepRolloutWorker, method)


class Engine(Reckoner):
    """A copy of the policy that acts, which RLinf knows nothing of."""

    synced = 0


class ActsByEngine(MultiStepRolloutWorker):
    """The shape of RLinf's workers for engines of others; how it takes weights is for the classes below."""

    def init_worker(self):
        super().init_worker()
        self.engine = Engine()

    def predict(self, env_obs, mode="train", **_):
        return self.engine.predict_action_batch(env_obs, mode)


class AfterRLinf(ActsByEngine):
    async def sync_model_from_actor(self):
        await super().sync_model_from_actor()
        self.engine.load_state_dict(self.hf_model.state_dict())


class BySyncer(ActsByEngine):
    async def sync_model_from_actor(self):
        async def received():
            raise AssertionError("the syncer asks for what it wants")

        if not self.weight_syncer.receiver_initialized():
            await self.weight_syncer.init_receiver(state_dict=None, recv=received, send=None)
        self.version = await self.weight_syncer.apply(self.engine, received)


class ByBroadcast(ActsByEngine):
    """Takes buckets by itself, as RLinf's bucket syncer does, and keeps what it was given."""

    async def sync_model_from_actor(self):
        source = (self.actor_group_name, self.actor_weight_src_rank)
        groups = [source, (self._group_name, self._weight_sync_rollout_ranks)]
        bucket = await self.broadcast(None, groups=groups, src=source, async_op=True).async_wait()
        self.version, total = int(bucket.pop("syncer_version")), int(bucket.pop("total_buckets"))
        for _ in range(total - 1):
            bucket |= await self.broadcast(None, groups=groups, src=source, async_op=True).async_wait()
        self.kept = bucket
        self.engine.load_state_dict(bucket, strict=False)


class ByName(ActsByEngine):
    def apply_weights(self, state_dict, version):
        self.kept = state_dict
        self.engine.load_state_dict(state_dict, strict=False)
        self.engine.synced = version


class WithoutRLinfsPolicy(ByName):
    """Has no `hf_model` at all."""

    def init_worker(self):
        self.engine = Engine()


def made(cls):
    worker = replacement(cls)(config())
    worker._group_name = "rollout"  # of RLinf's scheduler
    worker.init_worker()
    return worker


def weights(version):
    """Memory that is written over behind the version, as that of the run may be."""
    return {"version": torch.tensor([float(version)])}


@pytest.mark.parametrize("cls", [AfterRLinf, BySyncer, ByBroadcast, ByName, WithoutRLinfsPolicy])
def test_the_policy_that_acts_changes_with_every_version(cls):
    worker = made(cls)
    for version in (3, 4, 6):
        tensors = weights(version)
        asyncio.run(worker.load(version, [nullcontext(tensors)]))
        tensors["version"].fill_(-1.0)
        for answer in asyncio.run(worker.act([asked(0, 2), asked(1, 1)])):
            assert answer["version"] == worker.version == version
            assert (answer["forward_inputs"]["made_by"] == version).all()
        if hasattr(worker, "kept"):
            assert float(worker.kept["version"]) == version
        if hasattr(worker, "hf_model"):
            # Idle ranks score by it.
            assert float(worker.hf_model.version) == version


BUCKETS = ("weight_syncer.type=bucket",)


def of_phyais_shape(*overrides):
    worker = replacement(OwnEngineWorker)(config("runner.val_check_interval=1", *BUCKETS, *overrides))
    worker._group_name = "rollout"
    worker.init_worker()
    return worker


def test_a_worker_of_phyais_shape_acts_by_every_version_in_batches_of_any_size():
    worker = of_phyais_shape()
    engine = worker._engine
    assert not worker.can_score()
    for version in (3, 4, 6):
        asyncio.run(worker.load(version, [nullcontext(weights(version))]))
        sizes = (engine.room, 2, 1)
        batch = [asked(shard, size) for shard, size in enumerate(sizes)]
        answers = asyncio.run(worker.act(batch))
        # Later passes overwrite the engine's memory.
        asyncio.run(worker.act([asked(7, engine.room)]))
        asyncio.run(worker.act([asked(8, engine.room + 1, mode="eval")]))
        for shard, (size, answer) in enumerate(zip(sizes, answers, strict=True)):
            states = observation(shard, size)["states"]
            expected, result = Reckoner().predict_action_batch({"states": states}, "train")
            assert answer["version"] == engine.version == worker.version == version
            assert (answer["forward_inputs"]["made_by"] == version).all()
            assert torch.equal(answer["actions"], expected)
            assert torch.equal(answer["prev_logprobs"], result["prev_logprobs"])
    assert worker.steps == (3, 4, 6)
    assert max(engine.batches) == engine.room


@pytest.mark.parametrize("together", [True, False])
def test_rollouts_with_an_engine_of_phyais_shape_are_those_of_rlinfs_policy(monkeypatch, together):
    cfg = config("env.train.auto_reset=true", "algorithm.bootstrap_type=always", *BUCKETS)
    expected, _ = collected_by_rlinf(cfg, 3)
    engines = []

    def made(cfg):
        engines.append(replacement(OwnEngineWorker)(cfg))
        return engines[-1]

    monkeypatch.setattr(workers, "BatchingRolloutWorker", made)
    found, _ = collected_by_us(cfg, 3, together=together)
    for theirs, ours in zip(expected, found, strict=True):
        for stage, pieces in zip(theirs, ours, strict=True):
            for name in FIELDS:
                joined = torch.cat([piece.payload[name] for piece in pieces], dim=1)
                assert torch.equal(joined, getattr(stage, name)), name
    assert max(engines[0]._engine.batches) <= engines[0]._engine.room


def test_a_class_says_how_many_environments_its_engine_takes_at_once():
    class Small(ByName):
        largest_batch = 2

    worker = made(Small)
    asyncio.run(worker.load(1, [nullcontext(weights(1))]))
    answers = asyncio.run(worker.act([asked(0, 3), asked(1, 4)]))
    assert worker.engine.asked[-4:] == [2, 2, 2, 1]
    assert [len(answer["actions"]) for answer in answers] == [3, 4]


def test_a_batch_is_not_padded_beyond_the_room_of_an_engine():
    worker = of_phyais_shape("rollout.enable_torch_compile=true")
    worker._buckets = (2 * worker._engine.room,)
    asyncio.run(worker.load(1, [nullcontext(weights(1))]))
    asyncio.run(worker.act([asked(0, 3)]))
    assert worker._engine.batches == [3]


def test_offloading_an_engine_that_rlinf_cannot_move_is_refused():
    with pytest.raises(Exception, match=r"rollout.enable_offload=true moves hf_model.*enable_offload=false"):
        of_phyais_shape("rollout.enable_offload=true")


def test_rlinfs_ends_of_the_wire_are_back_when_the_weights_are_taken():
    worker = made(ByBroadcast)
    before = worker.weight_syncer, worker.broadcast
    asyncio.run(worker.load(1, [nullcontext(weights(1))]))
    assert (worker.weight_syncer, worker.broadcast) == before


def test_one_that_takes_nothing_ends_the_run_by_name():
    class Forgetful(ActsByEngine):
        async def sync_model_from_actor(self):
            pass

    worker = made(Forgetful)
    with pytest.raises(Exception, match=r"Forgetful\.sync_model_from_actor has not taken version 2"):
        asyncio.run(worker.load(2, [nullcontext(weights(2))]))


def test_an_engine_that_nothing_gives_new_weights_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"ActsByEngine overrides predict,.*apply_weights\(state_dict, version"
    ):
        replacement(ActsByEngine)

    class OnItsWay(AsyncMultiStepRolloutWorker):
        async def request_actor_sync_model(self):
            pass

    with pytest.raises(ValueError, match=r"OnItsWay overrides request_actor_sync_model"):
        replacement(OnItsWay)


def test_a_class_that_acts_by_rlinfs_policy_is_kept_as_it_was():
    class Scaled(MultiStepRolloutWorker):
        def predict(self, env_obs, mode="train", **options):
            actions, result = super().predict(env_obs, mode=mode, **options)
            return actions * 2, result

    class Helped(MultiStepRolloutWorker):
        def predict(self, env_obs, mode="train", **_):
            return self._answer(env_obs, mode)

        def _answer(self, env_obs, mode):
            return self.hf_model.predict_action_batch(env_obs, mode)

    class Other(MultiStepRolloutWorker):
        def warm(self):
            return "up"

    for cls in (Scaled, Helped, Other):
        assert issubclass(replacement(cls), cls)
