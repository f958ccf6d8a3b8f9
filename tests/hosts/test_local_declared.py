"""Environments and policies as packages declare them, on the host of one process."""

import asyncio
import copy
import threading

import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.hosts.local import LocalSettings, declared
from rlinf_async.hosts.local.declared import DeclaredPolicy, environments_of, policy_of
from rlinf_async.hosts.local.inference import InferenceRank
from rlinf_async.loops.requests import Pending
from rlinf_async.observe.meters import BusyMeter
from tests.hostile_errors import WORST
from tests.making import request

CHUNK, ACTION = 2, 3


class Words(torch.nn.Module):
    """Sees states and words; its actions are normal around the length of the words."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.value_head = torch.nn.Linear(1, 1)

    def predict_action_batch(self, env_obs, mode="train", **_):
        lengths = torch.tensor([[float(len(word))] for word in env_obs["task_descriptions"]])
        policy = self._policy(lengths)
        actions = policy.sample()
        inputs = {"lengths": lengths, "action": actions.flatten(1)}
        result = {"prev_logprobs": policy.log_prob(actions), "prev_values": self.value_head(lengths)}
        return actions, {**result, "forward_inputs": inputs}

    def forward(self, forward_inputs, **_):
        policy = self._policy(forward_inputs["lengths"])
        logprobs = policy.log_prob(forward_inputs["action"].view(-1, CHUNK, ACTION))
        return {"logprobs": logprobs, "values": self.value_head(forward_inputs["lengths"])}

    def _policy(self, lengths):
        mean = lengths[:, :, None].expand(-1, CHUNK, ACTION)
        return torch.distributions.Normal(mean, self.scale.exp())


def seen(*words):
    return {"states": torch.zeros(len(words), 2), "extra": None, "task_descriptions": list(words)}


def test_what_is_scored_again_is_what_was_thought_of_it_and_the_noise_is_all_chance():
    policy = DeclaredPolicy(Words())
    noise = torch.randn(2, 1)
    rollout = [policy.act(seen("a" * n, "b"), noise + n) for n in range(4)]
    again = policy.act(seen("aaa", "b"), noise + 3)
    assert torch.equal(again[0], rollout[3][0])
    assert not torch.equal(rollout[0][0][0], rollout[1][0][0] - 1)
    logprobs, values = (torch.stack([acted[field] for acted in rollout]) for field in (1, 2))
    inputs = {name: torch.stack([acted[3][name] for acted in rollout]) for name in ("lengths", "action")}
    flat = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}
    scored, valued = policy.score(flat)
    torch.testing.assert_close(scored, logprobs.flatten())
    torch.testing.assert_close(valued, values.flatten())


def test_the_critic_of_a_policy_has_a_rate_of_its_own_and_a_policy_without_one_is_of_no_value():
    policy = DeclaredPolicy(Words())
    assert {id(each) for each in policy.critic.parameters()} == {
        id(each) for each in policy.policy.value_head.parameters()
    }
    without = Words()
    del without.value_head
    without.value_head = lambda lengths: None
    assert DeclaredPolicy(without).act(seen("a"), torch.zeros(1, 1))[2].tolist() == [0.0]
    assert list(DeclaredPolicy(torch.nn.Linear(1, 1)).critic.parameters()) == []


def test_environments_that_are_built_anew_have_another_seed():
    cfg = OmegaConf.create({"env": {"env_class": "point_reach", "max_episode_steps": 9}})
    settings = LocalSettings(total_envs=4, horizon=9, global_batch_size=36, micro_batch_size=36)
    build = environments_of(cfg, settings)
    first, again, other = build(0, 2), build(0, 2), build(2, 2)
    starts = [envs.reset()[0]["states"] for envs in (first, again, other)]
    assert not any(torch.equal(starts[0], start) for start in starts[1:])
    torch.testing.assert_close(environments_of(cfg, settings)(0, 2).reset()[0]["states"], starts[0])


def test_a_null_seed_of_environments_is_the_seed_of_the_run():
    settings = LocalSettings(total_envs=2, horizon=9, global_batch_size=18, micro_batch_size=18, seed=7)
    section = {"env_class": "point_reach", "max_episode_steps": 9}
    null, none, other = (
        environments_of(OmegaConf.create({"env": {**section, **given}}), settings)(0, 2).reset()[0]["states"]
        for given in ({"seed": None}, {}, {"seed": 8})
    )
    assert torch.equal(null, none)
    assert not torch.equal(null, other)


def test_a_policy_is_built_from_the_block_that_names_it():
    cfg = OmegaConf.create({"model": {"model_type": "gaussian_mlp", "obs_dim": 2, "action_dim": 2}})
    policy = policy_of(cfg)(state_dim=0, action_dim=1)
    actions, logprobs, values, inputs = policy.act({"states": torch.zeros(3, 2)}, torch.zeros(3, 1))
    assert (actions.shape, logprobs.shape, values.shape) == ((3, 1, 2), (3,), (3,))
    assert set(inputs) >= {"states"}


class Buffered(Words):
    """Writes all that it answers where its last answer was, and draws nothing."""

    def __init__(self):
        super().__init__()
        self.buffers, self.sizes = {}, []

    def predict_action_batch(self, env_obs, mode="train", **_):
        actions, result = super().predict_action_batch(env_obs, mode)
        fields = {"actions": actions, "prev_logprobs": result["prev_logprobs"], **result["forward_inputs"]}
        self.sizes.append(len(actions))
        for name, value in fields.items():
            self.buffers.setdefault(name, torch.zeros(8, *value.shape[1:]))[: len(value)] = value
        own = {name: self.buffers[name][: len(actions)] for name in fields}
        inputs = {name: own[name] for name in result["forward_inputs"]}
        return own["actions"], {**result, "prev_logprobs": own["prev_logprobs"], "forward_inputs": inputs}


def answered(rank, *seen):
    """Answers of a rank to shards that have seen that."""
    payloads = [
        {"obs": {"seen": each, "noise": torch.full((len(each["task_descriptions"]), 1), float(number))}}
        for number, each in enumerate(seen)
    ]
    batch = [Pending(request=request(payload=each)) for each in payloads]
    return asyncio.run(rank.act(batch))


@pytest.fixture
def rank():
    made = InferenceRank(0, model=DeclaredPolicy(Buffered()), busy=BusyMeter())
    yield made
    made.close()


def test_an_answer_stays_what_it_was_where_a_policy_writes_the_next_one_over_it(rank):
    (first,) = answered(rank, seen("a", "bb"))
    before = copy.deepcopy(first)
    answered(rank, seen("cccc", "ddddd"))
    assert torch.equal(first["actions"], before["actions"])
    assert torch.equal(first["prev_logprobs"], before["prev_logprobs"])
    for name in ("lengths", "action"):
        assert torch.equal(first["forward_inputs"][name], before["forward_inputs"][name])


def test_shards_that_show_different_fields_are_seen_in_batches_of_their_own(rank):
    more = {**seen("ccc", "dddd"), "extra": torch.zeros(2)}
    found = answered(rank, seen("a"), more, seen("bb", "eeeee"))
    assert rank._model.policy.sizes == [3, 2]
    lengths = [answer["forward_inputs"]["lengths"].flatten().tolist() for answer in found]
    assert lengths == [[1], [3, 4], [2, 5]]


class Arrays(Words):
    """Answers in numpy's arrays."""

    def predict_action_batch(self, env_obs, mode="train", **_):
        actions, result = super().predict_action_batch(env_obs, mode)
        own = {name: value.detach().numpy() for name, value in result.items() if name != "forward_inputs"}
        inputs = {name: value.numpy() for name, value in result["forward_inputs"].items()}
        return actions.numpy(), {**own, "forward_inputs": inputs}


def test_a_policy_may_answer_in_arrays():
    torch.manual_seed(0)
    one, other = DeclaredPolicy(Words()), DeclaredPolicy(Arrays())
    other.load_state_dict(one.state_dict())
    noise = torch.randn(2, 1)
    with torch.no_grad():
        expected, found = (policy.act(seen("a", "bb"), noise) for policy in (one, other))
    for field in range(3):
        assert torch.equal(found[field], expected[field])
    assert all(torch.equal(found[3][name], value) for name, value in expected[3].items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda actions, result: actions, "has to return actions and a mapping"),
        (lambda actions, result: (actions[:, 0], result), r"actions \[2, 3\] for 2 environments"),
        (lambda actions, result: (actions[:1], result), r"actions \[1, 2, 3\] for 2 environments"),
        (
            lambda actions, result: (actions, {**result, "prev_values": torch.zeros(3, 1)}),
            r"prev_values \[3, 1\] for 2 environments",
        ),
        (
            lambda actions, result: (actions, {**result, "forward_inputs": {"lengths": torch.tensor(1)}}),
            r"forward_inputs\.lengths \[\] for 2 environments",
        ),
    ],
)
def test_what_a_policy_gives_that_is_of_another_shape_is_named(change, message, monkeypatch):
    policy = DeclaredPolicy(Words())
    given = policy.policy.predict_action_batch
    monkeypatch.setattr(policy.policy, "predict_action_batch", lambda **seen: change(*given(**seen)))
    with pytest.raises(ValueError, match=message):
        policy.act(seen("a", "bb"), torch.zeros(2, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("auto_reset", r"Fixed\.auto_reset is true: a rollout of the local host begins with a reset"),
        ("ignore_terminations", r"env\.ignore_terminations=False, and Fixed\.ignore_terminations is True"),
    ],
)
def test_environments_that_reset_themselves_whatever_their_section_says_are_refused(
    name, message, monkeypatch
):
    class Fixed:
        def __init__(self, *_):
            setattr(self, name, True)

    monkeypatch.setattr(declared, "load_class", lambda group, name: Fixed)
    cfg = OmegaConf.create({"env": {"env_class": "fixed"}})
    with pytest.raises(ValueError, match=message):
        environments_of(cfg, LocalSettings())(0, 4)


@pytest.mark.parametrize("raised", WORST)
def test_a_policy_that_cannot_be_built_is_named_with_what_it_has_raised(raised, monkeypatch):
    monkeypatch.setattr(declared, "load_class", lambda *_: raised.fail)
    build = policy_of(OmegaConf.create({"model": {"model_type": "openpi"}}))
    with pytest.raises(
        PolicyFailure, match=f"^the policy openpi cannot be built on this process: {raised.kind}"
    ):
        build(state_dim=0, action_dim=1)


def test_a_policy_that_hangs_is_named_before_those_give_up_that_wait_for_it(monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(DeclaredPolicy, "act", lambda *_: held.wait())
    made = InferenceRank(0, model=DeclaredPolicy(Buffered()), busy=BusyMeter(), deadline_s=0.1)
    with pytest.raises(
        PolicyFailure, match=r"not answered on inference rank 0 for 0.09 s .* its thread is in"
    ):
        answered(made, seen("a"))
    held.set()
    made.close()
