"""What training tells of a batch, and looks at beside it: its premise, and samples to measure ratios on."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from rlinf.data.embodied_io_struct import convert_trajectories_to_batch
from rlinf.utils import metric_utils
from rlinf.workers.actor import fsdp_actor_worker as stock

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.premise import Premise
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.learner import FSDPTraining
from rlinf_async.observe.meters import BusyMeter
from tests.hosts.rlinf.alone import STEPS, Run, one_rank
from tests.hosts.rlinf.learners import actor_of
from tests.hosts.rlinf.synthetic import act_by, trajectories

ONCE = "algorithm.update_epoch=1"


@pytest.fixture(scope="module", autouse=True)
def alone():
    with one_rank():
        yield


def off_by(run, batch, *, now, before):
    """The batch, its log-probabilities `now` off the policy's, and `before` where an older policy has acted.

    Its values are half as large again as the critic's.
    """
    act_by(run.actor, batch)
    batch["prev_logprobs"][:, :, 1::2] += now
    batch["prev_logprobs"][:, :, ::2] += before
    batch["prev_values"] *= 1.5
    return batch


def test_the_premise_of_a_run_is_examined_once_on_samples_of_the_policy_that_trains(caplog):
    run = Run.of("async.mode=train", ONCE, examined=True)
    caplog.clear()
    run.train(1, off_by(run, run.batch(0), now=0.05, before=0.3), lag=1)
    found = run.training.metrics[0]
    assert found["train/premise/logprobs"] == pytest.approx(0.05, rel=1e-3)
    assert found["train/premise/values"] == pytest.approx(1 / 3, rel=1e-3)
    assert len(caplog.messages) == 2
    assert all("mlp_policy" in text for text in caplog.messages)
    run.train(2, run.batch(1))
    # Whoever learns with the same actor afterwards takes over what was found.
    run.learner = run.actor.make_learner(run.settings, BusyMeter())
    run.train(3, run.batch(2))
    assert not any("premise" in name for metrics in run.training.metrics[1:] for name in metrics)
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("measures", [True, False])
def test_values_that_do_not_come_back_are_kept_unless_nothing_is_measured(measures):
    run = Run.of("async.mode=train", ONCE, f"async.advanced.measure_ratios={measures}", examined=True)
    pieces = run.arriving(0, off_by(run, run.batch(0), now=0.0, before=0.0))
    for _ in range(2):
        training = run.actor.make_learner(run.settings, BusyMeter()).training
        training.begin(0)
        rollout = training.rollout(pieces)
        stored = rollout["prev_values"].clone()
        training.anchor(rollout)
        torch.testing.assert_close(rollout["prev_values"], stored if measures else stored / 1.5)


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("ppo", ("async.mode=train",)),
        ("ppo", ("async.mode=streamer",)),
        # As many pieces as fill a micro-batch come together, and fewer at the end.
        ("grpo", ("async.mode=streamer", "algorithm.group_size=4", "actor.micro_batch_size=64")),
    ],
)
def test_a_batch_of_the_policy_that_trains_is_told_as_rlinf_tells_it(algorithm, overrides):
    run = Run.of(*overrides, ONCE, algorithm=algorithm)
    batch = run.batch(0)
    act_by(run.actor, batch)
    theirs = actor_of(stock.EmbodiedFSDPActor, run.cfg)
    theirs.rollout_batch = theirs._process_received_rollout_batch(
        convert_trajectories_to_batch(trajectories(run.settings.plan, batch, 0))
    )
    expected = theirs.compute_advantages_and_returns()
    run.train(0, batch)
    found = {name: value for name, value in run.training.metrics[0].items() if name.startswith("rollout/")}
    assert found == pytest.approx(
        {f"rollout/{name}": float(value) for name, value in expected.items()}, abs=1e-5
    )


def test_a_batch_that_streamed_is_told_by_its_own_advantages_and_not_by_those_of_the_batch_before():
    """Pieces are trained on by the scale of the batch before; what is told is of the whole batch itself."""
    run = Run.of("async.mode=streamer", ONCE)
    run.train(0, run.batch(0), together=1)
    batch = run.batch(1)
    batch["rewards"] *= 3
    run.train(1, batch, order=3, together=1)
    found = run.training.metrics[1]
    assert found["train/streamed"] > 0.5
    stock_actor = actor_of(stock.EmbodiedFSDPActor, run.cfg)
    stock_actor.rollout_batch = stock_actor._process_received_rollout_batch(
        convert_trajectories_to_batch(trajectories(run.settings.plan, batch, 0))
    )
    stock_actor.compute_advantages_and_returns()
    fields = {name: field for name, field in stock_actor.rollout_batch.items() if torch.is_tensor(field)}
    mask = fields["loss_mask"].expand_as(fields["advantages"]).numpy()
    assert not mask.all()
    for name in ("advantages", "returns"):
        valid = fields[name].numpy()[mask]
        told = [found[f"rollout/{name}_{how}"] for how in ("mean", "min", "max")]
        assert told == pytest.approx([valid.mean(), valid.min(), valid.max()], abs=1e-5)
    kept = fields["loss_mask"].expand_as(fields["rewards"]).numpy()
    assert found["rollout/rewards"] == pytest.approx(fields["rewards"].numpy()[kept].mean(), abs=1e-6)


@pytest.mark.parametrize("masked", [True, False])
def test_groups_without_signal_are_counted_once_also_where_their_samples_are_left_out(masked):
    chosen = ("async.mode=full", "algorithm.group_size=4", f"async.skip.masked={masked}")
    run = Run.of(*chosen, ONCE, algorithm="grpo")
    assert bool(run.settings.left_out.silent) == masked
    batch = run.batch(0)
    batch["rewards"][:, :, :4] = 0.0
    run.train(0, batch, together=1)
    assert run.training.metrics[0]["train/groups_without_signal"] == len(batch["rewards"])


def test_rlinf_is_told_which_micro_batch_is_the_last_of_its_step():
    run = Run.of("async.mode=streamer", STEPS, ONCE)
    run.train(0, run.batch(0))
    assert run.training.lasts == [False, False, False, True] * 3


def test_metrics_are_means_over_ranks_and_explained_variance_is_that_of_their_sums(monkeypatch):
    """A second rank that has seen the same: sums double, and means stay."""
    changes = {
        "pop_critic_explained_variance_stats": lambda metrics: {"losses": sum(metrics["critic/value_loss"])},
        "compute_critic_explained_variance_from_stats": lambda sums: sums["losses"],
        "CRITIC_EXPLAINED_VARIANCE_KEY": "critic/explained_variance",
    }
    for name, value in changes.items():
        monkeypatch.setattr(metric_utils, name, value, raising=False)
    monkeypatch.setattr(borrowed, "is_here", lambda name: name in changes)

    def told():
        run = Run.of("async.mode=streamer", ONCE)
        run.train(0, run.batch(0))
        return run.training.metrics[0]

    def beside_the_same(tensor, op=dist.ReduceOp.SUM, **_):
        if op == dist.ReduceOp.SUM:
            tensor *= 2

    alone = told()
    monkeypatch.setattr(dist, "all_reduce", beside_the_same)
    found = told()
    losses = 192 // 16 * alone["train/critic/value_loss"]
    assert alone["train/critic/explained_variance"] == pytest.approx(losses, rel=1e-5)
    assert found == pytest.approx(alone | {"train/critic/explained_variance": 2 * losses}, rel=1e-5)


def test_one_sample_in_a_hundred_is_scored_to_compare_policies():
    run = Run.of("async.mode=train", "async.train.correction=none", "async.advanced.accept_bias=true", ONCE)
    asked = []

    def note(model, inputs, keywords, output):
        if not torch.is_grad_enabled():
            asked.append(len(output["logprobs"]))

    run.actor.model.register_forward_hook(note, with_kwargs=True)
    run.train(0, run.batch(0))
    assert set(asked) == {192 // 100}


@pytest.mark.parametrize("level", ["token_level", "action_level", "chunk_level"])
@pytest.mark.parametrize("fields", [(), ("proximal_logprobs",), ("proximal_logprobs", "acted_logprobs")])
def test_ratios_are_measured_at_the_level_at_which_they_are_formed(level, fields):
    """Without a number of dimensions in the config an action has seven, as RLinf has it."""
    model = {"model_type": "openvla"}
    cfg = OmegaConf.create({"algorithm": {"logprob_type": level}, "actor": {"model": model}})
    asynchrony = SimpleNamespace(advanced=SimpleNamespace(measures=False))
    settings = SimpleNamespace(asynchrony=asynchrony, has_critic=True, compares_groups=False)
    actor = SimpleNamespace(
        cfg=cfg,
        premise=Premise(),
        held_inputs=HeldInputs(),
        model=torch.nn.Identity(),
        optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1),
    )
    training = FSDPTraining(actor, settings)
    training.begin(5)
    draw = torch.Generator().manual_seed(0)
    names = ("prev_logprobs", *fields)
    rollout = {name: torch.randn(3, 2, 14, generator=draw) for name in names}
    rollout |= {"forward_inputs": {"number": torch.arange(6).reshape(3, 2)}}
    rollout["versions"] = torch.tensor([[5.0, 4.0], [3.0, 5.0], [5.0, 5.0]])[..., None]
    inputs, staleness, pair = training.probe_samples(rollout)
    assert inputs["forward_inputs"]["number"].tolist() == list(range(6))
    assert torch.equal(inputs["prev_logprobs"], rollout["prev_logprobs"].flatten(0, 1))
    assert staleness.tolist() == [0, 1, 2, 0, 0, 0]
    if not fields:
        assert pair is None
        return
    for found, name in zip(pair, ("proximal_logprobs", names[-1 if len(fields) > 1 else 0]), strict=True):
        actions = rollout[name].numpy().reshape(6, 2, 7)
        expected = {
            "token_level": actions,
            "action_level": actions.sum(2),
            "chunk_level": actions.sum((1, 2)),
        }
        assert found.numpy() == pytest.approx(expected[level], abs=1e-5)
