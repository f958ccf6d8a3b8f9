"""Saved, resumed, and a step: the weights, rates and optimizer of a run that was not interrupted."""

import pytest
import torch
from rlinf.workers.actor import fsdp_actor_worker as stock

from rlinf_async.hosts.kit.sharded import whole
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.optimizer_progress import FILE_NAME
from tests.hosts.rlinf.alone import Run, one_rank
from tests.hosts.rlinf.learners import actor_of

LEVEL_1 = ("async.mode=train", "async.train.max_staleness=1")
COSINE = ("+actor.optim.lr_scheduler=cosine", "+actor.optim.total_training_steps=9")
CASES = {
    "lr": ["actor.optim.lr=2e-3"],
    "value_lr": ["actor.optim.value_lr=5e-3"],
    "adam_eps": ["actor.optim.adam_eps=1e-3"],
    "weight_decay": ["actor.optim.weight_decay=0.1"],
    "adam_beta1": ["actor.optim.adam_beta1=0.5"],
    "adam_beta2": ["actor.optim.adam_beta2=0.9"],
    "clip_grad": ["actor.optim.clip_grad=0.01"],
    "lr_warmup_steps": ["+actor.optim.lr_warmup_steps=6"],
    "lr_warmup_steps_ratio": [*COSINE, "+actor.optim.lr_warmup_steps_ratio=0.4"],
    "total_training_steps": COSINE,
    "num_cycles": [*COSINE, "+actor.optim.num_cycles=1.5"],
    "min_lr": [*COSINE, "+actor.optim.min_lr=5e-5"],
    "min_lr_rate": [*COSINE, "+actor.optim.min_lr_rate=0.3"],
    "lr_scheduler": ["+actor.optim.lr_scheduler=torch_cosine", "+actor.optim.total_training_steps=9"],
    "critic_warmup_steps": ["actor.optim.critic_warmup_steps=2"],
}
WARM_UPS = {"behind": (2, 4), "with its last step": (4, 4), "inside": (6, 4), "in the first steps": (4, 1)}


@pytest.fixture(scope="module", autouse=True)
def ranks():
    with one_rank():
        yield


def step(actor, number):
    """The optimizer step and that of the schedule, with gradients that `number` and the weights say."""
    for parameter in actor.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.cos(7 * parameter.detach() + number)
    actor.optimizer_step()
    actor.lr_scheduler.step()
    actor.optimizer.zero_grad()


def state(actor):
    """All that the next steps depend on."""
    tensors = {name: each.detach().clone() for name, each in actor.model.named_parameters()}
    names = {parameter: name for name, parameter in actor.model.named_parameters()}
    for parameter, moments in actor.optimizer.state.items():
        for name, value in moments.items():
            tensors[f"{names[parameter]} {name}"] = torch.as_tensor(value).detach().clone()
    numbers = {
        "rates": [group["lr"] for group in actor.optimizer.param_groups],
        "trained": [parameter.requires_grad for parameter in actor.model.parameters()],
        # Nothing asks for the count behind the warm-up.
        "steps": actor.optimizer_steps if actor.critic_warmup_steps else None,
        "warm-up": actor.critic_warmup_steps,
    }
    return tensors, numbers


def assert_goes_on_alike(folder, overrides, *, steps, saves=None, drop=()):
    """The steps behind a checkpoint after `steps` of an actor, by that actor and by one that resumes."""
    overrides = [*LEVEL_1, *overrides]
    run = Run.of(*overrides)
    actor = run.actor if saves is None else actor_of(saves, run.cfg)
    for number in range(steps):
        step(actor, number)
    actor.save_checkpoint(str(folder / "actor"), steps)
    for name in drop:
        (folder / "actor" / name).unlink()
    resumed = Run.of(*overrides).actor
    resumed.load_checkpoint(str(folder / "actor"))
    for number in range(steps, steps + 4):
        for each in (actor, resumed):
            step(each, number)
        (tensors, numbers), (own_tensors, own_numbers) = map(state, (actor, resumed))
        assert own_numbers == numbers
        assert own_tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(whole(own_tensors[name]), whole(tensor)), name


def test_every_key_of_the_optimizer_is_tried():
    served = {row.name for row in TABLE.rows if row.name.startswith("actor.optim.") and row.fate == "served"}
    assert served - {"actor.optim.*"} <= {f"actor.optim.{name}" for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_resumed_makes_the_next_steps_like_one_that_was_not_interrupted(name, tmp_path):
    assert_goes_on_alike(tmp_path, CASES[name], steps=4)


@pytest.mark.parametrize("when", WARM_UPS)
@pytest.mark.parametrize(
    "schedule", [(), ("+actor.optim.lr_warmup_steps=6",)], ids=["constant", "warm-up of rates"]
)
def test_a_checkpoint_of_any_moment_of_the_critics_warm_up_is_gone_on_from(when, schedule, tmp_path):
    warmup, steps = WARM_UPS[when]
    overrides = [f"actor.optim.critic_warmup_steps={warmup}", *schedule]
    assert_goes_on_alike(tmp_path, overrides, steps=steps)


@pytest.mark.parametrize("when", WARM_UPS)
def test_a_checkpoint_of_stock_rlinf_is_gone_on_from_too(when, tmp_path):
    warmup, steps = WARM_UPS[when]
    overrides = [f"actor.optim.critic_warmup_steps={warmup}"]
    assert_goes_on_alike(tmp_path, overrides, steps=steps, saves=stock.EmbodiedFSDPActor)


def test_a_checkpoint_of_the_warm_up_wants_a_config_that_has_one(tmp_path):
    actor = Run.of(*LEVEL_1, "actor.optim.critic_warmup_steps=6").actor
    step(actor, 0)
    actor.save_checkpoint(str(tmp_path / "actor"), 1)
    with pytest.raises(ValueError, match=r"critic warmed up; set actor\.optim\.critic_warmup_steps=6"):
        Run.of(*LEVEL_1).actor.load_checkpoint(str(tmp_path / "actor"))


def test_rates_of_a_checkpoint_without_our_file_are_those_that_it_has(tmp_path):
    overrides = [*COSINE, "actor.optim.critic_warmup_steps=2"]
    assert_goes_on_alike(tmp_path, overrides, steps=4, drop=[FILE_NAME])


def test_the_scale_of_losses_goes_on_where_it_was(tmp_path):
    actors = [Run.of(*LEVEL_1).actor for _ in range(2)]
    for actor, scale in zip(actors, (8.0, 65536.0), strict=True):
        # RLinf's own scaler is one for CUDA, which does nothing here.
        actor.grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    one, resumed = actors
    one.grad_scaler.scale(torch.zeros(()))
    step(one, 0)
    one.save_checkpoint(str(tmp_path / "actor"), 1)
    resumed.load_checkpoint(str(tmp_path / "actor"))
    for each in actors:
        each.grad_scaler.scale(torch.zeros(()))
    assert resumed.grad_scaler.state_dict() == one.grad_scaler.state_dict()
    assert one.grad_scaler.state_dict()["_growth_tracker"] == 1
