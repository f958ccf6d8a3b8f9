"""Saved, resumed, and a step: the weights, rates and optimizer of a learner that was not interrupted."""

import json

import pytest
import torch

from rlinf_async.hosts.kit.sharded import whole
from rlinf_async.hosts.verl.reasons import TABLE
from tests.hosts.verl.engines import free_port, in_two_ranks, join, learner, rollout, settings, train, weights

OPTIM = "actor_rollout_ref.actor.optim"
COSINE = f"{OPTIM}.lr_scheduler_type=cosine"
CASES = {
    "lr": [f"{OPTIM}.lr=2e-3"],
    "critic.optim.lr": ["critic.optim.lr=5e-3"],
    "weight_decay": [f"{OPTIM}.weight_decay=0.1"],
    "clip_grad": [f"{OPTIM}.clip_grad=0.01"],
    "betas": [f"{OPTIM}.betas=[0.5,0.9]"],
    "lr_warmup_steps": [f"{OPTIM}.lr_warmup_steps=6"],
    "lr_warmup_steps_ratio": [COSINE, f"{OPTIM}.lr_warmup_steps_ratio=0.4"],
    "min_lr_ratio": [COSINE, f"{OPTIM}.min_lr_ratio=0.3"],
    "num_cycles": [COSINE, f"{OPTIM}.num_cycles=1.5"],
    "lr_scheduler_type": [COSINE],
    "warmup_style": [f"+{OPTIM}.warmup_style=cosine"],
    "zero_indexed_step": [COSINE, f"{OPTIM}.lr_warmup_steps=6", f"{OPTIM}.zero_indexed_step=false"],
    "optimizer": [f"{OPTIM}.optimizer=SGD", f"{OPTIM}.override_optimizer_config={{momentum:0.9}}"],
    "optimizer_impl": [f"{OPTIM}.optimizer=RMSprop", f"{OPTIM}.optimizer_impl=torch.optim"],
    "override_optimizer_config": [f"++{OPTIM}.override_optimizer_config={{amsgrad:true,eps:1e-3}}"],
}
OF_TWO = ("lr", "critic.optim.lr", "clip_grad", "lr_scheduler_type", "optimizer", "override_optimizer_config")
"""Cases of two ranks: each kind of moments, as a rank saves its own shards of them, and what ranks sum up.
The other keys are numbers that all ranks have alike."""
STEPS_BEFORE, STEPS_AFTER = 2, 2


def state(worker):
    """All that the next steps depend on."""
    engine = worker.engine
    tensors = weights(worker)
    for number, held in engine.optimizer.state_dict()["state"].items():
        tensors |= {f"{number} {name}": whole(torch.as_tensor(value)) for name, value in held.items()}
    groups = [{k: v for k, v in group.items() if k != "params"} for group in engine.optimizer.param_groups]
    return tensors, groups, engine.lr_scheduler.state_dict()


def test_every_key_of_the_optimizer_is_tried():
    served = {row.name for row in TABLE.rows if ".optim." in row.name and row.fate == "served"}
    tried = {name if "." in name else f"{OPTIM}.{name}" for name in CASES}
    # All entries of one block are tried together.
    assert {name for name in served if ".override_optimizer_config." not in name} <= tried


def differences(name, folder, *, rank=0, ranks=1):
    """What a learner that is resumed has otherwise in the next steps than one that was not interrupted."""
    of = settings(plan={"learner_ranks": ranks})
    worker = learner(of, *CASES[name])
    batches = [rollout(of, seed=seed) for seed in range(STEPS_BEFORE + STEPS_AFTER)]
    train(worker, of, batches[:STEPS_BEFORE], rank=rank)
    begun = weights(worker)
    worker.save_checkpoint(f"{folder}/{name}/actor", None, STEPS_BEFORE, None)
    resumed = learner(of, *CASES[name])
    resumed.load_checkpoint(f"{folder}/{name}/actor")
    found = []
    for number in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
        for each in (worker, resumed):
            train(each, of, [batches[number]], first=number, rank=rank)
        (tensors, groups, schedule), (own_tensors, own_groups, own_schedule) = map(state, (worker, resumed))
        found += ["rates"] * (own_groups != groups) + ["schedule"] * (own_schedule != schedule)
        found += sorted(own_tensors.keys() ^ tensors.keys())
        found += [one for one, tensor in tensors.items() if not torch.equal(own_tensors[one], tensor)]
    return found + ["no step"] * all(torch.equal(begun[one], tensors[one]) for one in begun)


@pytest.mark.parametrize("name", CASES)
def test_a_learner_that_is_resumed_makes_the_next_steps_like_one_that_was_not_interrupted(name, tmp_path):
    assert differences(name, tmp_path) == []


def work(rank, port, folder):
    torch.set_num_threads(1)
    join(rank, 2, port)
    found = {name: differences(name, folder, rank=rank, ranks=2) for name in OF_TWO}
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The differences on each of two ranks, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    in_two_ranks(work, free_port(), str(folder))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", OF_TWO)
def test_so_do_two_ranks_with_shards_of_the_weights_and_moments(of_two, name):
    assert [rank[name] for rank in of_two] == [[], []]
