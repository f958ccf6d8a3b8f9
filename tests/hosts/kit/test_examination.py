"""What a policy is: without a memory, alone as in company, and with buffers that acting leaves alone."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_async.hosts.kit.answers import Answering
from rlinf_async.hosts.kit.examination import COMPARED_ELEMENTS, Buffers, FirstLook, examine

SIZE = 5


class Policy(nn.Module):
    """Samples around a linear mean; `prepared` is what its actions are functions of."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.value = nn.Linear(3, 4), nn.Linear(3, 1)

    def prepared(self, states):
        return states

    def noise(self, mean):
        return torch.randn_like(mean)

    def decide(self, states, mode):
        seen = self.prepared(states)
        mean = self.mean(seen)
        actions = mean + (self.noise(mean) if mode == "train" else 0)
        return actions.view(-1, 2, 2), {"prev_values": self.value(seen)}


class Tokens(Policy):
    """Samples tokens, and takes the likeliest in an evaluation."""

    def decide(self, states, mode):
        chances = self.mean(states).softmax(-1)
        drawn = torch.multinomial(chances, 1) if mode == "train" else chances.argmax(-1, keepdim=True)
        return drawn[:, None].float(), {"prev_values": None}


class Flow(Policy):
    """Begins with noise in every mode, and draws a step from Python's generator and numbers from numpy's."""

    def decide(self, states, mode):
        step, shift = random.randrange(4), float(np.random.rand())
        noise = torch.randn(len(states), 4)
        return (self.mean(states) + noise * step + shift)[:, None], {"prev_values": self.value(states)}


class Half(Policy):
    """Kernels for other sizes round otherwise."""

    def __init__(self):
        super().__init__()
        self.bfloat16()

    def prepared(self, states):
        return states.bfloat16() * (1 + 0.002 * len(states))


class Cached(Policy):
    """Has a cache, which no version overwrites."""

    def __init__(self):
        super().__init__()
        self.register_buffer("asked", torch.zeros(()), persistent=False)

    def prepared(self, states):
        self.asked += 1
        return states


class WritesInPlace(Policy):
    """Normalises what it is given where it is."""

    def prepared(self, states):
        return states.mul_(0.5)


class Remembers(Policy):
    last = 0.0

    def prepared(self, states):
        self.last = 0.5 * self.last + states.mean()
        return states + self.last


class OwnGenerator(Policy):
    def __init__(self):
        super().__init__()
        self.draw = torch.Generator().manual_seed(3)

    def noise(self, mean):
        return torch.randn(mean.shape, generator=self.draw)


class LooksAround(Policy):
    """Normalises by the batch, without a buffer."""

    def prepared(self, states):
        return states - states.mean(dim=0)


class LooksAroundInEvaluations(LooksAround):
    def decide(self, states, mode):
        actions, _ = super().decide(states, mode)
        return actions, {}


class Normalised(Policy):
    """Layers that were left in training mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def prepared(self, states):
        return self.norm.train()(states)


class Counts(Policy):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen_mean", torch.zeros(3))

    def prepared(self, states):
        self.seen_mean += 0.1 * (states.mean(0) - self.seen_mean)
        return states


class Rank(Answering):
    _version_held = 0

    def __init__(self, policy):
        self.policy = policy

    @torch.no_grad()
    def decide(self, observations, size, mode):
        states = observations[0]["states"]["now"]
        if len(observations) > 1:
            states = torch.cat([each["states"]["now"] for each in observations])
        assert size == len(states) == sum(len(each["words"]) for each in observations)
        return self.policy.decide(states, mode)

    def watched_module(self):
        return self.policy


def observations():
    draw = torch.Generator().manual_seed(1)
    states = torch.randn(SIZE, 3, generator=draw)
    return [
        {"none": None, "room": torch.tensor(4.0), "states": {"now": part}, "words": ["walk"] * len(part)}
        for part in states.split(2)
    ]


def remarks(policy):
    found = examine(Rank(policy).by_chance, observations(), SIZE, module=policy)
    one = [{**observations()[0]}]
    assert examine(Rank(policy).by_chance, one, 2, module=policy) == [
        each.replace(f"batch of {SIZE}", "batch of 2") for each in found
    ]
    assert torch.equal(one[0]["states"]["now"], observations()[0]["states"]["now"])
    return found


@pytest.mark.parametrize("cls", [Policy, Tokens, Flow, Half, Cached, WritesInPlace])
def test_chance_and_rounding_are_nothing_to_remark(cls):
    assert remarks(cls()) == []


@pytest.mark.parametrize("cls", [Remembers, OwnGenerator])
def test_a_policy_that_answers_otherwise_the_second_time_is_remarked(cls):
    (remark,) = remarks(cls())
    assert "other actions" in remark
    assert "keeps a memory, or draws from a generator of its own" in remark
    assert ("prev_values" in remark) == (cls is Remembers)


@pytest.mark.parametrize(
    ("cls", "what"), [(LooksAround, "prev_values"), (LooksAroundInEvaluations, "actions")]
)
def test_a_policy_that_looks_at_the_whole_batch_is_remarked(cls, what):
    (remark,) = remarks(cls())
    assert f"gives other {what} for an observation alone than in a batch of {SIZE}" in remark


@pytest.mark.parametrize(("cls", "name"), [(Normalised, "norm.running_mean"), (Counts, "seen_mean")])
def test_buffers_that_acting_changes_end_the_run_at_its_start_by_name(cls, name):
    with pytest.raises(RuntimeError, match=f"buffer {name}.* has changed while the policy acted"):
        remarks(cls())


def test_generators_go_on_where_they_were():
    def drawn():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]

    policy = Flow()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(7)
    expected = drawn()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(7)
    assert remarks(policy) == []
    assert drawn() == expected


def test_a_rank_looks_once_and_at_requests_for_training_alone():
    said, rank = [], Rank(LooksAround())
    rank.first_look = FirstLook(said.append)
    payloads = [{"obs": each} for each in observations()]
    sizes = [len(each["words"]) for each in observations()]
    rank.answer(payloads, sizes, "eval")
    assert said == []
    rank.policy.decide = lambda states, mode: (
        LooksAround.decide(rank.policy, states, mode)[0],
        {"prev_values": rank.policy.value(rank.policy.prepared(states)), "forward_inputs": {}},
    )
    for _ in range(2):
        rank.answer(payloads, sizes, "train")
    assert len(said) == 1


def test_buffers_are_compared_with_what_was_written_last():
    policy = Counts()
    buffers = Buffers(policy)
    policy.load_state_dict({**policy.state_dict(), "seen_mean": torch.ones(3)})
    buffers.note()
    buffers.check()
    policy.seen_mean[1] = float("nan")
    buffers.note()
    buffers.check()
    policy.decide(torch.zeros(2, 3), "train")
    with pytest.raises(RuntimeError, match="seen_mean"):
        buffers.check()


def test_of_a_large_buffer_some_elements_are_kept_and_a_change_of_all_is_seen():
    module = torch.nn.Module()
    module.register_buffer("memory", torch.zeros(3, COMPARED_ELEMENTS + 1))
    buffers = Buffers(module)
    assert sum(each.numel() for each in buffers._written.values()) <= COMPARED_ELEMENTS
    buffers.check()
    module.memory += 1
    with pytest.raises(RuntimeError, match="memory has changed"):
        buffers.check()
    module.memory = torch.ones(COMPARED_ELEMENTS + 1)
    with pytest.raises(RuntimeError, match="memory has changed"):
        buffers.check()
