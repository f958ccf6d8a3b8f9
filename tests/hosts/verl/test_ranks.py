"""Two learner ranks: FSDP2 over gloo, each with half of a batch, against one rank with all of it."""

import pytest
import torch
import torch.multiprocessing

from rlinf_async.hosts.kit.sharded import ShardedWeights
from tests.hosts.verl.engines import free_port, join, learner, rollout, same, settings, train, weights

PLAIN = ("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=0.3")
"""A step as long as its gradient, so that weights show how far two gradients are apart."""
GROUPS = {"estimator": "grpo", "normalizes": False, "group_size": 4}
CASES = {
    "whole, gae": {"asynchrony": {"mode": "off"}},
    "whole, gae, environments that reset themselves": {"asynchrony": {"mode": "off"}, "auto_reset": True},
    "whole, all advantages of a batch": {"asynchrony": {"mode": "off"}, **GROUPS, "estimator": "gpg"},
    "streamed, gae": {"asynchrony": {"mode": "streamer"}},
    "streamed, groups": {"asynchrony": {"mode": "streamer"}, **GROUPS},
    "streamed, groups, two epochs": {"asynchrony": {"mode": "streamer"}, **GROUPS, "update_epoch": 2},
    "streamed, off-policy": {"asynchrony": {"mode": "full"}, **GROUPS},
}
"""One optimizer step each epoch, so that the order of samples, which is a rank's own, does not matter."""


def trained(name, ranks, rank):
    """(Weights and metrics after one batch, weights that leave) of one of `ranks` learner ranks."""
    case = CASES[name]
    of = settings(**{**case, "global_batch_size": 32, "plan": {"learner_ranks": ranks}})
    worker = learner(of, *PLAIN, f"algorithm.adv_estimator={of.estimator}")
    fields = rollout(of, seed=1)
    if of.asynchrony.off_policy:
        fields["versions"][:, ::2] -= 1
    (metrics,) = train(worker, of, [fields], rank=rank)
    taken = ShardedWeights(worker.engine.module, sends=rank == 0).take()
    return {"weights": weights(worker), "metrics": metrics, "sent": taken and dict(taken.tensors)}


def work(rank, port, directory):
    torch.set_num_threads(1)
    join(rank, 2, port)
    torch.save({name: trained(name, 2, rank) for name in CASES}, f"{directory}/{rank}.pt")


@pytest.fixture(autouse=True)
def one_thread():
    """As the ranks have: initial weights are orthogonal, which several threads round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What each of two ranks has made of each case."""
    directory = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, (free_port(), str(directory)), nprocs=2)
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_of_a_batch_what_one_makes_of_it(of_two, name):
    alone = trained(name, 1, 0)
    for found in (ranks[name] for ranks in of_two):
        for tensor, expected in alone["weights"].items():
            torch.testing.assert_close(found["weights"][tensor], expected, atol=2e-6, rtol=1e-5)
        for metric in ("train/actor/grad_norm", "train/loss", "train/actor/pg_loss", "rollout/rewards"):
            assert found["metrics"][metric] == pytest.approx(alone["metrics"][metric], rel=1e-3, abs=1e-6)


def test_one_rank_sends_the_weights_of_both(of_two):
    first, second = ({name: ranks[name]["sent"] for name in CASES} for ranks in of_two)
    for name in CASES:
        assert same(first[name], of_two[1][name]["weights"])
        assert second[name] is None
