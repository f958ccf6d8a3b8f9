"""RLinf's NFT actor behind our learner: without a lag its numbers, with one v_d of the version that acted."""

import pytest
import torch
from rlinf.config import EMBODIED_MODEL
from rlinf.data.embodied_io_struct import convert_trajectories_to_batch
from rlinf.workers.actor.fsdp_nft_policy_worker import EmbodiedNFTFSDPPolicy

from rlinf_async.compose import compose_config
from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.kit.sharded import whole
from rlinf_async.hosts.rlinf.borrowed import register_model
from rlinf_async.hosts.rlinf.config import resolve, write_back
from rlinf_async.hosts.rlinf.exactness import exactness
from rlinf_async.hosts.rlinf.nft_worker import AVERAGE_FILE, RememberingSnapshot
from rlinf_async.hosts.rlinf.replacements import replacement
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.observe.meters import BusyMeter
from tests.hosts.rlinf.alone import one_rank
from tests.hosts.rlinf.learners import SIZES, actor_of
from tests.hosts.rlinf.synthetic import fields, pieces, trajectories
from tests.making import accept
from tests.runs.flow_policy import STEPS, FlowPolicy, build
from tests.runs.test_nft import FLOW

RESAMPLE = "+algorithm.nft_xcur_source=resample"
AVERAGE = "+algorithm.nft_tau=[1.0,0.3,0,2]"
SEED = 11


@pytest.fixture(scope="module", autouse=True)
def alone():
    known = set(EMBODIED_MODEL)
    register_model("tiny_flow", build, category="embodied", force=True)
    with one_rank():
        yield
    EMBODIED_MODEL.intersection_update(known)


def config(*overrides):
    cfg = compose_config(
        "metaworld_grpo_mlp",
        [*SIZES, *FLOW, "algorithm.group_size=4", "env.eval.group_size=1", "actor.optim.lr=0.01", *overrides],
    )
    return cfg, resolve(cfg, sizes={"env": 1, "rollout": 1, "actor": 1})


def state_of(actor):
    state = actor.get_rollout_state_dict()
    return {name: whole(tensor).detach().clone() for name, tensor in state.items()}


def policy_with(state):
    policy = FlowPolicy(39, 1, 4)
    policy.load_state_dict(state)
    return policy


def acted(settings, seed, state):
    """A batch whose actions, and what they record, are of the policy with the weights `state`."""
    batch = fields(settings.plan, settings.horizon, seed=seed)
    states = batch["states"][:, :-1]
    actions, answer = policy_with(state).predict_action_batch({"states": states.flatten(0, 2)})
    inputs = map_tensors(lambda tensor: tensor.unflatten(0, states.shape[:3]), answer["forward_inputs"])
    velocities = {name: value for name, value in inputs.items() if name.startswith("nft_")}
    batch |= {"action": actions.reshape(*states.shape[:3], -1), **velocities}
    batch["prev_logprobs"] = torch.zeros_like(batch["prev_logprobs"])
    return batch


class Ours:
    def __init__(self, *overrides):
        self.cfg, self.settings = config(*overrides)
        own = self.cfg.copy()
        write_back(own, self.settings)
        self.actor = actor_of(replacement(EmbodiedNFTFSDPPolicy), own)
        self.learner = self.actor.make_learner(self.settings, BusyMeter())
        self.snapshot = RememberingSnapshot(self.actor)

    def publish(self, version):
        self.actor.set_global_step(version)
        self.snapshot.take()
        return state_of(self.actor)

    def train(self, index, batch, *, lag=0):
        arriving = pieces(self.settings.plan, batch, 0, index=index, lag=lag)
        for piece in arriving:
            del piece.payload["bootstrap_inputs"]
        self.learner.begin(index)
        accept(self.learner, arriving)
        torch.manual_seed(SEED + index)
        return self.learner.finish()


def train_stock(actor, settings, index, batch):
    actor.set_global_step(index)
    received = convert_trajectories_to_batch(trajectories(settings.plan, batch, 0))
    actor.rollout_batch = actor._process_received_rollout_batch(received)
    actor.compute_advantages_and_returns()
    torch.manual_seed(SEED + index)
    return actor.run_training()


@pytest.mark.parametrize("mode", ["lean", "rollout", "streamer"])
@pytest.mark.parametrize("source", ["rollout", "resample"])
def test_without_a_lag_weights_average_and_metrics_are_those_of_rlinfs_actor(mode, source):
    ours = Ours(f"async.mode={mode}", f"+algorithm.nft_xcur_source={source}", AVERAGE)
    theirs = actor_of(EmbodiedNFTFSDPPolicy, ours.cfg)
    for index in range(3):
        published = ours.publish(index)
        theirs.set_global_step(index)
        assert_equal(published, state_of(theirs))
        batch = acted(ours.settings, index, published)
        metrics = ours.train(index, batch)
        expected = train_stock(theirs, ours.settings, index, batch)
        assert {name: metrics[f"train/{name}"] for name in expected} == pytest.approx(expected)
        assert expected["actor/grad_norm"] > 0
    assert_equal(ours.publish(3), state_of(theirs))
    assert ours.actor.rollout_model_state_dict.keys() == published.keys()


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in theirs.items() if not torch.equal(ours[name], tensor)] == []


def test_a_resumed_run_goes_on_with_its_moving_average(tmp_path):
    overrides = ("async.mode=rollout", "async.rollout.shards=1", "+algorithm.nft_tau=0.3")
    through = Ours(*overrides)
    for index in range(2):
        published = through.publish(index)
        through.train(index, acted(through.settings, index, published))
    through.actor.save_checkpoint(str(tmp_path / "actor"), 2)
    resumed = Ours(*overrides)
    resumed.actor.load_checkpoint(str(tmp_path / "actor"))
    published = through.publish(2)
    assert_equal(resumed.publish(2), published)
    for each in (through, resumed):
        each.train(2, acted(each.settings, 2, published))
    assert_equal(resumed.publish(3), through.publish(3))


def test_from_a_checkpoint_of_rlinfs_own_the_average_begins_with_its_weights(tmp_path):
    trained = Ours("async.mode=rollout", "async.rollout.shards=1")
    trained.train(0, acted(trained.settings, 0, trained.publish(0)))
    trained.actor.save_checkpoint(str(tmp_path / "actor"), 1)
    assert not (tmp_path / "actor" / AVERAGE_FILE).exists()
    resumed = Ours("async.mode=rollout", "async.rollout.shards=1", "+algorithm.nft_tau=0.3")
    resumed.actor.load_checkpoint(str(tmp_path / "actor"))
    assert_equal(resumed.publish(1), trained.publish(1))


@pytest.mark.parametrize("average", ["+algorithm.nft_tau=1.0", "+algorithm.nft_tau=0.3"])
@pytest.mark.parametrize("how", [RESAMPLE, "+algorithm.recompute_v=true"])
def test_with_a_lag_old_velocities_are_of_the_version_that_acted(how, average):
    ours = Ours("async.mode=train", how, average)
    states = {}
    for index in range(3):
        states[index] = ours.publish(index)
        ours.train(index, acted(ours.settings, index, states[index]), lag=min(1, index))
        trained = ours.actor.rollout_batch
        versions = trained["versions"].flatten().long()
        assert set(versions.tolist()) == ({index - 1, index} if index else {0})
        inputs = trained["forward_inputs"]
        time = 1 - inputs["nft_step_index"] / STEPS
        for version in set(versions.tolist()):
            rows = versions == version
            with torch.no_grad():
                velocities = policy_with(states[version])._velocity(
                    inputs["states"][rows], inputs["nft_xcur"][rows], time[rows]
                )
            torch.testing.assert_close(inputs["nft_v"][rows], velocities)
    one, other = (policy_with(states[version]).net[0].weight for version in (1, 2))
    assert (one - other).abs().max() > 1e-3


def test_with_a_lag_stored_velocities_are_kept():
    ours = Ours("async.mode=train")
    state = ours.publish(0)
    batch = acted(ours.settings, 0, state)
    ours.train(0, batch)
    ours.publish(1)
    ours.train(1, batch, lag=1)
    kept = ours.actor.rollout_batch["forward_inputs"]
    with torch.no_grad():
        time = 1 - kept["nft_step_index"] / STEPS
        stored = policy_with(state)._velocity(kept["states"], kept["nft_xcur"], time)
    torch.testing.assert_close(kept["nft_v"], stored)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [((), "v_d is stored"), ((RESAMPLE,), "v_d is scored by the version that acted")],
)
def test_every_mode_is_accepted_and_level_1_says_what_a_lag_means(overrides, words):
    for mode in ("lean", "train", "rollout", "streamer", "full"):
        cfg, settings = config(f"async.mode={mode}", *overrides)
        found = exactness(RLinfView.of(plain(cfg)), settings)
        assert (words in found["train"]) == (mode in ("train", "full"))
        assert not settings.streams
        assert not settings.asynchrony.recomputes
        assert found["streamer"] == "off" or "the learner waits for the whole batch" in found["streamer"]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "async.train.correction=tis",
            r"correction=tis weighs samples by a probability ratio.*remove the key",
        ),
        ("algorithm.adv_type=gae", r"adv_type='gae' does not go with algorithm.loss_type=embodied_nft"),
    ],
)
def test_what_nft_does_not_have_is_refused_by_name(override, text):
    with pytest.raises(ValueError, match=text):
        config("async.mode=full", override)
