"""One inference rank: whom it serves, whose its answers are and who made them, and what padding leaves."""

import asyncio
import gc
import random
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rlinf.workers.rollout.hf import huggingface_worker as stock_rollout

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.hosts.kit import inference
from rlinf_async.hosts.rlinf.learner import Snapshot
from rlinf_async.loops.requests import Pending
from rlinf_async.ray_runtime.processes import inference_worker
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.payloads import sealed
from rlinf_async.wire.shown_memory import ShownMemory
from tests.hostile_errors import WORST
from tests.hosts.rlinf.learners import without_ray
from tests.hosts.rlinf.workers import (
    ACTION,
    CHUNK,
    Reckoner,
    config,
    in_one_process,
    pending,
    rollout_worker,
)
from tests.making import request
from tests.open_files import memory_files


@pytest.fixture(scope="module")
def worker():
    with in_one_process():
        yield rollout_worker(config("runner.val_check_interval=1"))


@pytest.fixture(autouse=True)
def fresh(worker):
    """Nothing is left of the test before."""
    worker._buckets, worker.hf_model, worker._version_held = (), Reckoner(), 0


def observation(shard, size, *, age=1.0):
    name = torch.arange(size) + 10.0 * shard
    states = torch.stack([name, torch.ones(size), torch.full((size,), age), torch.zeros(size)], dim=1)
    picture = torch.full((size, 2, 2), shard, dtype=torch.uint8)
    return {
        "states": states,
        "main_images": picture,
        "wrist_images": None,
        "task_descriptions": ["walk"] * size,
    }


def asked(shard, size, *, mode="train", final=None):
    return pending(shard, size, observation(shard, size), mode=mode, final=final)


def answers(worker, batch):
    return asyncio.run(worker.act(batch))


def alone(states):
    """What the policy says of these states by themselves."""
    actions, result = Reckoner().predict_action_batch({"states": states}, "train")
    return actions, result["prev_values"], result["prev_logprobs"]


def sent(version):
    """The weights of a learner whose policy writes `version` beside its actions."""

    class Actor:
        model, _rank, cfg = Reckoner(), 0, OmegaConf.create({})
        param_names_need_sync = ("version",)

        def get_rollout_state_dict(self):
            return self.model.state_dict()

    with torch.no_grad():
        Actor.model.version.fill_(float(version))
    return [nullcontext(Snapshot(Actor()).take().tensors)]


def test_every_shard_gets_the_answer_to_its_own_observations(worker):
    sizes = {0: 2, 1: 1, 2: 3}
    batch = [asked(shard, size) for shard, size in sizes.items()]
    for (shard, size), answer in zip(sizes.items(), answers(worker, batch), strict=True):
        states = observation(shard, size)["states"]
        actions, values, logprobs = alone(states)
        assert answer["actions"].shape == (size, CHUNK, ACTION)
        assert torch.equal(answer["actions"], actions)
        assert torch.equal(answer["prev_values"], values)
        assert torch.equal(answer["prev_logprobs"], logprobs)
        assert torch.equal(answer["forward_inputs"]["states"], states)
        assert torch.equal(answer["forward_inputs"]["action"], actions.flatten(1))
    assert worker.hf_model.asked == [6]


def test_pictures_that_the_policy_hands_back_are_named_and_left_out(worker):
    for answer in answers(worker, [asked(1, 2), asked(2, 2)]):
        assert answer["echoes"] == {"image": "main_images"}
        assert "image" not in answer["forward_inputs"]


@pytest.mark.parametrize("version", [1, 7])
def test_an_answer_bears_the_version_whose_weights_made_it(worker, version):
    before = answers(worker, [asked(0, 2), asked(1, 1)])
    asyncio.run(worker.load(version, sent(version)))
    after = answers(worker, [asked(0, 2), asked(1, 1), asked(2, 1, mode="eval")])
    for answer, label in [(each, 0) for each in before] + [(each, version) for each in after[:2]]:
        assert answer["version"] == label
        assert (answer["forward_inputs"]["made_by"] == label).all()
    assert after[2]["version"] == version


def test_loading_tells_the_policy_the_step(worker, monkeypatch):
    told = []
    monkeypatch.setattr(Reckoner, "set_global_step", lambda self, step: told.append(step), raising=False)
    for version in (4, 6):
        asyncio.run(worker.load(version, sent(version)))
    assert told == [4, 6]


def test_values_of_final_observations_go_to_the_shards_whose_episodes_ended(worker):
    finals = {1: observation(1, 2, age=9.0), 3: observation(3, 1, age=8.0), 4: observation(4, 3, age=7.0)}
    batch = [asked(shard, size, final=finals.get(shard)) for shard, size in enumerate((1, 2, 2, 1, 3))]
    for shard, answer in enumerate(answers(worker, batch)):
        if shard in finals:
            _, values, _ = alone(finals[shard]["states"])
            assert torch.equal(answer["bootstrap_values"], values)
        else:
            assert answer["bootstrap_values"] is None
    assert worker.hf_model.asked == [9, 6]


def test_a_policy_without_a_critic_gives_no_values_of_final_observations(worker, monkeypatch):
    monkeypatch.delattr(Reckoner, "value_head")
    (answer,) = answers(worker, [asked(0, 2, final=observation(0, 2))])
    assert answer["bootstrap_values"] is None


def test_padding_changes_the_size_of_forward_passes_and_nothing_else(worker):
    batch = [asked(0, 2, final=observation(0, 2, age=9.0)), asked(1, 3)]
    plain = answers(worker, batch)
    worker._buckets = (4, 8)
    padded = answers(worker, batch)
    assert worker.hf_model.asked == [5, 2, 8, 4]
    for one, other in zip(plain, padded, strict=True):
        assert one.keys() == other.keys()
        for name in ("actions", "prev_values", "prev_logprobs"):
            assert torch.equal(one[name], other[name])
        assert one["forward_inputs"].keys() == other["forward_inputs"].keys()
        assert all(
            torch.equal(one["forward_inputs"][n], other["forward_inputs"][n]) for n in one["forward_inputs"]
        )
        assert one["echoes"] == other["echoes"]
    assert torch.equal(plain[0]["bootstrap_values"], padded[0]["bootstrap_values"])
    assert plain[1]["bootstrap_values"] is padded[1]["bootstrap_values"] is None


@pytest.mark.parametrize("size", [4, 9])
def test_a_batch_that_fits_or_that_no_bucket_holds_is_not_padded(worker, size):
    worker._buckets = (4, 8)
    answers(worker, [asked(0, size)])
    assert worker.hf_model.asked == [size]


def test_training_and_evaluation_are_answered_apart_in_the_order_of_the_requests(worker):
    modes = ["eval", "train", "eval", "train"]
    batch = [asked(shard, 1 + shard, mode=mode) for shard, mode in enumerate(modes)]
    found = answers(worker, batch)
    assert worker.hf_model.asked == [2 + 4, 1 + 3]
    for shard, (mode, answer) in enumerate(zip(modes, found, strict=True)):
        actions, values, _ = alone(observation(shard, 1 + shard)["states"])
        assert len(answer["actions"]) == 1 + shard
        assert torch.equal(answer["actions"], actions) == (mode == "train")
        if mode == "train":
            assert torch.equal(answer["prev_values"], values)
        else:
            assert answer.keys() == {"version", "actions"}


def test_a_policy_without_values_answers_without(worker, monkeypatch):
    known = Reckoner.predict_action_batch

    def without(self, env_obs, mode, **_):
        actions, result = known(self, env_obs, mode)
        return actions, {**result, "prev_values": None}

    monkeypatch.setattr(Reckoner, "predict_action_batch", without)
    for answer in answers(worker, [asked(0, 2), asked(1, 1)]):
        assert answer["prev_values"] is None
        assert answer["prev_logprobs"] is not None


def test_the_thread_of_inference_uses_the_device_of_its_worker(worker):
    used = []
    with mock.patch.object(
        worker.torch_platform, "set_device", lambda device: used.append((threading.current_thread(), device))
    ):
        another = rollout_worker(config())
        another.hf_model = Reckoner()
        answers(another, [asked(0, 1)])
    ((thread, device),) = [each for each in used if each[0].name.startswith("inference")]
    assert thread is not threading.current_thread()
    assert device == another.device


def test_a_pass_gives_back_what_it_has_read_without_the_garbage_collector(worker):
    """RLinf asks the config for keys that it lacks, which must not leave the frames of the pass behind."""
    assert OmegaConf.select(worker.cfg, "algorithm.dagger") is None
    pool, seen = ShownMemory(Listening.ASKED_WITH), []

    async def act_again():
        for _ in range(4):
            with sealed({"obs": observation(1, 2000), "final_obs": None}, pool) as place:
                await worker.act([Pending(request=request(1, 2000, payload=place))])
            worker._inference_thread.submit(int).result()  # by then the thread has let go of the pass before
            seen.append(memory_files())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(act_again())
    finally:
        gc.enable()
    assert len(set(seen)) == 1, seen


def test_every_generator_that_policies_draw_from_is_seeded(worker):
    def draws():
        worker.init_worker()
        return random.random(), np.random.random(), torch.rand(1).item()

    first = draws()
    random.seed(7)
    np.random.seed(7)
    assert draws() == first


@pytest.mark.parametrize(("overrides", "seed"), [(("actor.seed=5",), 5), (("~actor.seed",), 0)])
def test_ranks_sample_apart_from_each_other_and_from_the_learner(worker, monkeypatch, overrides, seed):
    monkeypatch.setattr(worker, "cfg", config("runner.val_check_interval=1", *overrides))
    seeds = []
    monkeypatch.setattr(inference, "seed_everything", seeds.append)
    for rank in range(3):
        monkeypatch.setattr(worker, "_inference_rank", rank)
        worker.init_worker()
    # What takes the place of a process that has died does not sample what that one did.
    monkeypatch.setattr(worker, "generation", 1)
    worker.init_worker()
    assert seeds == [seed + 1, seed + 2, seed + 3, seed + 3 + 7919 * 1000]


FIXED_LAG = ("async.mode=train", "async.deterministic=true", "actor.seed=5")


@pytest.mark.parametrize(("overrides", "seed"), [(FIXED_LAG, 6), (("actor.seed=5",), None)])
def test_sampling_begins_anew_with_every_version_in_a_deterministic_run(worker, monkeypatch, overrides, seed):
    monkeypatch.setattr(worker, "cfg", config("runner.val_check_interval=1", *overrides))
    monkeypatch.setattr(worker, "sampling_seed", None)
    worker.init_worker()
    assert worker.sampling_seed == seed


def test_weights_that_nobody_sends_are_drawn_as_the_learner_draws_them(worker):
    class Fresh(Reckoner):
        def __init__(self):
            super().__init__()
            self.drawn = torch.rand(3)

    with mock.patch.object(stock_rollout, "get_model", side_effect=lambda _: Fresh()):
        worker.init_worker()
    torch.manual_seed(worker.cfg.actor.seed)  # as our actor does before it builds its model
    assert torch.equal(worker.hf_model.drawn, Fresh().drawn)


@pytest.mark.parametrize("raised", WORST)
def test_a_policy_that_cannot_be_built_is_named_with_its_rank_and_what_it_has_raised(worker, raised):
    # RLinf wraps methods of its workers, and says an exit as an error, with its frames.
    blame = rf"^the policy mlp_policy cannot be built on inference rank 0: (RuntimeError: )?{raised.kind}"
    with (
        mock.patch.object(stock_rollout, "get_model", side_effect=raised.fail),
        pytest.raises(PolicyFailure, match=blame),
    ):
        worker.init_worker()


def test_a_rank_serves_its_own_requests_in_the_sizes_of_the_run(monkeypatch):
    joined = []

    async def serving(*, requests, **_):
        joined.append(requests)

    async def loading(**_):
        """Weights come by themselves."""

    monkeypatch.setattr(inference_worker, "serve_policy", serving)
    monkeypatch.setattr(inference_worker, "load_next", loading)
    monkeypatch.setattr(inference_worker, "refresh_weights", loading)
    monkeypatch.setattr(
        inference_worker, "WeightClient", lambda *given, **named: joined.append((given, named))
    )
    monkeypatch.setattr(inference_worker, "RequestServer", lambda *given, **named: (given, named))
    limits = SimpleNamespace(advanced=SimpleNamespace(deadline_s=60.0))
    settings = SimpleNamespace(buckets=(4, 8), asynchrony=limits)
    with in_one_process(), without_ray(2, 4):
        worker = rollout_worker(config())
        asyncio.run(worker.serve(settings, "requests", "coordinator"))
        asyncio.run(worker.act([asked(0, 3)]))
    own = {"rank": 2, "generation": 0}
    assert joined == [(("coordinator",), own), (("requests",), own | {"deadline_s": 60.0})]
    assert worker.hf_model.asked == [4]
