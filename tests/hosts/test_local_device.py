from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.hosts.local.policy import ActorCritic, DeviceQueue
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import point_reach
from tests.hosts.local_runs import small, small_policy

pytestmark = pytest.mark.timeout(60)


def run(settings, policy=small_policy, **options):
    return LocalTrainer(settings, point_reach(), policy, **options).run()


class OnePass(ActorCritic):
    """The least that the host asks of a policy: `act` and `evaluate`."""

    def __init__(self, *, state_dim, action_dim):
        super().__init__()
        self.mean, self.value_head = torch.nn.Linear(state_dim, action_dim), torch.nn.Linear(state_dim, 1)

    def act(self, states, noise):
        actions = self.mean(states) + noise
        return actions, *self.evaluate(states, actions)

    def evaluate(self, states, actions):
        density = -((actions - self.mean(states[: len(actions)])) ** 2) / 2
        return density.sum(dim=-1), self.value_head(states).squeeze(-1)


@pytest.mark.parametrize("mode", ["off", "full"])
def test_any_policy_that_acts_and_evaluates_can_be_trained(mode):
    start = OnePass(state_dim=2, action_dim=2).state_dict()
    result = run(small({"mode": mode}), policy=OnePass, weights=start)
    assert result.weights.keys() == start.keys()
    assert not any(torch.equal(tensor, start[name]) for name, tensor in result.weights.items())


def test_on_cuda_a_block_begins_after_the_default_stream_and_ends_when_its_work_has(monkeypatch):
    log = []

    class Stream:
        def __init__(self, device, priority):
            log.append(f"a stream of priority {priority} on {device}")

        def wait_stream(self, other):
            log.append(f"waits for {other}")

        def synchronize(self):
            log.append("has ended")

    @contextmanager
    def current(stream):
        log.append("is current")
        yield
        log.append("is not current")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"the default of {device}")
    monkeypatch.setattr(torch.cuda, "stream", current)
    model = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda", 0))]))
    with DeviceQueue(model, urgent=True).block():
        log.append("works")
    assert log == [
        "a stream of priority -1 on cuda:0",
        "waits for the default of cuda:0",
        "is current",
        "works",
        "is not current",
        "has ended",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("block", [{"mode": "off"}, {"mode": "train", "deterministic": True}])
def test_on_a_cuda_device_training_ends_where_it_ends_on_the_cpu(block):
    settings = small(block)
    start = GaussianPolicy(state_dim=2, action_dim=2, hidden=8).state_dict()

    def on_cuda(**dims):
        return GaussianPolicy(**dims, hidden=8).to("cuda")

    here, there = run(settings, weights=start), run(settings, weights=start, policy=on_cuda)
    assert all(torch.allclose(here.weights[name], there.weights[name].cpu(), atol=1e-4) for name in start)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["train", "rollout", "streamer", "full"])
def test_every_mode_trains_on_a_cuda_device(mode):
    settings = small({"mode": mode})
    result = run(settings, policy=lambda **dims: OnePass(**dims).to("cuda"))
    assert result.ledger.trained == settings.batches * settings.plan.trajectories_per_batch
    assert all(tensor.device.type == "cuda" for tensor in result.weights.values())
