"""Two learner ranks: FSDP2 over gloo, each with half of a batch, against one rank with all of it."""

import pytest
import torch
from torch.distributed.tensor import DTensor

from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.kit.sharded import ShardedWeights
from tests.hosts.verl.engines import (
    free_port,
    in_two_ranks,
    join,
    learner,
    rollout,
    same,
    settings,
    train,
    weights,
)

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


MASKED, SILENT = LeftOut(masked=True), LeftOut(masked=True, silent=True)
SKIPS = {
    "whole, gae": MASKED,
    "streamed, gae": MASKED,
    "whole, groups": SILENT,
    "streamed, groups": SILENT,
    "streamed, off-policy": SILENT,
}
"""What is left out of cases, of which one rank has more than the other."""


def gradients(name, leaves, rank):
    """This rank's shards of the gradients of two optimizer steps, before they are clipped, its passes with
    gradients, and the share of samples that both ranks have left out."""
    case = CASES.get(name, {"asynchrony": {"mode": "off"}, **GROUPS})
    of = settings(**{**case, "global_batch_size": 16, "plan": {"learner_ranks": 2}, "left_out": leaves})
    worker = learner(of, *PLAIN, f"algorithm.adv_estimator={of.estimator}")
    engine, seen, passes = worker.engine, [], []
    step, scores = engine.optimizer_step, engine.scores

    def stepping():
        shards = [one.grad for one in engine.module.parameters() if one.grad is not None]
        seen.append(torch.cat([local(shard).flatten() for shard in shards]))
        return step()

    def counting(inputs, **more):
        if torch.is_grad_enabled():
            passes.append(len(inputs["states"]))
        return scores(inputs, **more)

    engine.optimizer_step, engine.scores = stepping, counting
    fields = rollout(of, seed=1)
    fields["rewards"][:, :4] = 0.0  # a group of rank 0
    if of.asynchrony.off_policy:
        fields["versions"][:, ::2] -= 1
    (metrics,) = train(worker, of, [fields], rank=rank)
    return {"gradients": seen, "passes": passes, "skipped": metrics.get("async/skipped/samples", 0.0)}


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def work(rank, port, directory):
    torch.set_num_threads(1)
    join(rank, 2, port)
    made = {name: trained(name, 2, rank) for name in CASES}
    made["skips"] = {
        name: {kind: gradients(name, kind, rank) for kind in (LeftOut(), leaves)}
        for name, leaves in SKIPS.items()
    }
    torch.save(made, f"{directory}/{rank}.pt")


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
    in_two_ranks(work, free_port(), str(directory))
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_of_a_batch_what_one_makes_of_it(of_two, name):
    alone = trained(name, 1, 0)
    for found in (ranks[name] for ranks in of_two):
        for tensor, expected in alone["weights"].items():
            torch.testing.assert_close(found["weights"][tensor], expected, atol=2e-6, rtol=1e-5)
        for metric in ("train/actor/grad_norm", "train/loss", "train/actor/pg_loss", "rollout/rewards"):
            assert found["metrics"][metric] == pytest.approx(alone["metrics"][metric], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", SKIPS)
def test_on_two_ranks_the_gradient_without_dead_samples_is_that_of_all_samples(of_two, name):
    every, some = ([ranks["skips"][name][leaves] for ranks in of_two] for leaves in (LeftOut(), SKIPS[name]))
    steps = zip(
        *(
            [torch.cat(shards) for shards in zip(*(one["gradients"] for one in ranks), strict=True)]
            for ranks in (every, some)
        ),
        strict=True,
    )
    for number, (whole, found) in enumerate(steps):
        # The second step begins at weights that the first has made.
        assert (found - whole).norm() <= (1e-5 if number else 1e-6) * whole.norm()
        assert whole.norm() > 1e-3
    assert number == 1
    for ranks in (every, some):
        assert len({len(one["passes"]) for one in ranks}) == 1  # as a sharded model needs them
    assert sum(some[0]["passes"]) < sum(every[0]["passes"])
    assert every[0]["skipped"] == 0.0 < some[0]["skipped"] == some[1]["skipped"] < 1.0


def test_one_rank_sends_the_weights_of_both(of_two):
    first, second = ({name: ranks[name]["sent"] for name in CASES} for ranks in of_two)
    for name in CASES:
        assert same(first[name], of_two[1][name]["weights"])
        assert second[name] is None
