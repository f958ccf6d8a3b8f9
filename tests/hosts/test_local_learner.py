import asyncio
import copy

import numpy as np
import pytest
import torch

from rlinf_async.config import AsyncConfig, sections
from rlinf_async.core.tensors import concatenate, slice_samples
from rlinf_async.core.types import ActionRequest, Piece, Ticket
from rlinf_async.hosts.kit.samples import PROXIMAL_FIELD
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.inference import InferenceRank
from rlinf_async.hosts.local.learner import LocalTraining, local_learner, with_estimates
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.loops.requests import Pending
from rlinf_async.observe.meters import BusyMeter
from tests.making import accept

HORIZON, ENVS = 4, 6


def settings_of(block=None, **changes):
    sizes = {
        "total_envs": ENVS,
        "horizon": HORIZON,
        "global_batch_size": HORIZON * ENVS,
        "micro_batch_size": HORIZON * ENVS,
        "lr": 1e-2,
        "asynchrony": AsyncConfig.from_mapping(block),
    }
    return LocalSettings(**{**sizes, **changes})


class ByDimension(GaussianPolicy):
    """Each dimension of an action has a ratio of its own."""

    def logprobs(self, states, actions):
        normal = torch.distributions.Normal(self.actor_mean(self.backbone(states)), self.actor_logstd.exp())
        return normal.log_prob(actions)


def policy(seed=0, cls=GaussianPolicy):
    torch.manual_seed(seed)
    return cls(state_dim=2, action_dim=2, hidden=8)


def opinionated(seed, cls=GaussianPolicy):
    """A policy far enough from a fresh one that ratios between the two are not all about 1."""
    model = policy(seed, cls)
    torch.nn.init.normal_(model.actor_mean.weight, std=0.2)
    return model


@torch.no_grad()
def piece(actor, *, batch=0, seed=0, ends_at=2, acted=0, place=0):
    """A rollout by `actor` in which the first environment ends its episode with decision `ends_at`."""
    chance = torch.Generator().manual_seed(seed)
    states = torch.randn(HORIZON + 1, ENVS, 2, generator=chance)
    actions = actor.sample(states[:-1], torch.randn(HORIZON, ENVS, 2, generator=chance))
    ended = torch.zeros(HORIZON + 1, ENVS, dtype=torch.bool)
    ended[ends_at + 1 :, 0] = True
    payload = {
        "forward_inputs": {"states": states[:-1], "actions": actions},
        "bootstrap_inputs": {"states": states[-1:], "actions": torch.zeros(1, ENVS, 2)},
        "prev_logprobs": actor.logprobs(states[:-1], actions),
        "prev_values": actor.values(states),
        "versions": torch.full((HORIZON, ENVS), acted),
        "rewards": torch.randn(HORIZON, ENVS, generator=chance),
        "ended": ended,
        "truncated": torch.zeros_like(ended),
    }
    ticket = Ticket(shard=place, batch=batch, epoch=0, place=place, version=batch)
    return Piece(
        ticket=ticket, part=0, rank=0, size=ENVS, oldest=batch, newest=batch, env_steps=24, payload=payload
    )


def learner_of(settings, model):
    return local_learner(settings, model, BusyMeter())


def sampled(given):
    """The rollout of a piece whose policy is the one that trains it."""
    return {**given.payload, PROXIMAL_FIELD: given.payload["prev_logprobs"]}


def samples_of(learner, given):
    """What `learner` trains on in its first pass when it is handed `given` as a whole batch."""
    trained = noting_samples(learner)
    learner.begin(0)
    learner.accept([given])
    learner.finish()
    return slice_samples(concatenate(trained), 0, HORIZON * ENVS)


def noting_samples(learner):
    """The micro-batches that `learner` trains from now on."""
    noted, train = [], learner.training.train_micro_batch

    def noting(samples, *, steps):
        noted.append(samples)
        train(samples, steps=steps)

    learner.training.train_micro_batch = noting
    return noted


def test_all_that_is_trained_on_is_where_the_policy_is():
    """Torch does not compute with tensors of two devices. Its device without data is one beside the CPU."""
    training = LocalTraining(settings=settings_of({"mode": "train"}), model=policy().to("meta"))
    with training.working():
        training.begin(0)
        rollout = training.rollout([piece(policy())])
        training.anchor(rollout)
        training.estimate(rollout)
        samples = training.samples(rollout, torch.arange(HORIZON * ENVS))
    samples |= samples.pop("forward_inputs")
    assert {name: tensor.device.type for name, tensor in samples.items()} == dict.fromkeys(samples, "meta")


def written_out(learner, samples, logprobs, weights, anchor):
    """The policy loss of a whole batch, every sample by itself."""
    total = 0.0
    for index in range(len(weights)):
        ratio, advantage = torch.exp(logprobs[index] - anchor[index]), samples["advantages"][index]
        clipped = ratio.clamp(0.8, 1.2)
        objective = weights[index] * torch.min(ratio * advantage, clipped * advantage)
        total = total - objective.mean() * samples["valid"][index]
    return total / samples["valid"].sum()


CORRECTIONS = {
    "decoupled": lambda rho: rho,
    "tis": lambda rho: rho.clamp(max=1.05),
}


@pytest.mark.parametrize("cls", [GaussianPolicy, ByDimension])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_gradient_of_an_off_policy_batch_is_that_of_the_weighted_objective(correction, cls):
    actor, current = policy(0, cls), opinionated(1, cls)
    block = {"mode": "train", "train": {"correction": correction}}
    if correction == "tis":
        block["advanced"] = {"max_weight": 1.05}
    learner = learner_of(settings_of(block, clip_grad=1e9, algorithm="ppo"), current)
    anchor_model, gradients = copy.deepcopy(current), []
    note_gradients(learner, gradients)
    samples = samples_of(learner, piece(actor))
    logprobs, _ = anchor_model.score(samples["forward_inputs"])
    rho = torch.exp(logprobs.detach() - samples["prev_logprobs"])
    assert 0 < (rho > 1.05).float().mean() < 1
    weights = CORRECTIONS[correction](rho)
    written_out(learner, samples, logprobs, weights, logprobs.detach()).backward()
    for parameter, found in zip(policy_parameters(anchor_model), gradients[0], strict=True):
        assert torch.allclose(parameter.grad, found, atol=1e-5)


def policy_parameters(model):
    return [one for name, one in model.named_parameters() if not name.startswith("value_head")]


def note_gradients(learner, gradients):
    """Keep the gradients of every optimizer step of `learner`."""
    step = learner.training._optimizer.step

    def noting():
        gradients.append([one.grad.clone() for one in policy_parameters(learner.training.model)])
        step()

    learner.training._optimizer.step = noting


@pytest.mark.parametrize("cls", [GaussianPolicy, ByDimension])
def test_interpolated_anchors_move_with_the_policy_and_need_no_pass(cls):
    block = {"mode": "train", "advanced": {"proximal": "loglinear"}}
    actor, current = policy(0, cls), opinionated(1, cls)
    learner = learner_of(settings_of(block), current)
    before, trained = copy.deepcopy(current), noting_samples(learner)
    learner.begin(1)
    learner.accept([piece(actor, batch=1, acted=0)])
    metrics = learner.finish()
    samples = concatenate(trained)
    with torch.no_grad():
        exact, _ = before.score(samples["forward_inputs"])
        half = (samples["prev_logprobs"] + exact) / 2
    assert torch.equal(samples[PROXIMAL_FIELD], samples["prev_logprobs"])
    assert torch.allclose(learner.training._anchor(samples, exact), half, atol=1e-6)
    # A lag of one leaves the interpolation half way between the sampler and the truth.
    error = metrics["train/proximal_error/before/lag_1/abs_log"]
    assert error == pytest.approx(float((half - exact).abs().mean()), rel=1e-4)
    assert metrics["train/proximal_error/after/lag_1/abs_log"] != error


@pytest.mark.parametrize("cls", [GaussianPolicy, ByDimension])
def test_the_ratios_of_sampler_and_versions_are_measured_apart(cls):
    sampler, at_zero, at_one = policy(0, cls), opinionated(1, cls), opinionated(2, cls)
    learner = learner_of(settings_of({"mode": "train"}), at_zero)
    first, second = piece(sampler, batch=0), piece(sampler, batch=1, acted=0, seed=5)
    samples_of(learner, first)
    learner.training.model.load_state_dict(at_one.state_dict())
    learner._past.changed()
    learner.begin(1)
    learner.accept([second])
    metrics = learner.finish()
    with torch.no_grad():
        states, actions = second.payload["forward_inputs"].values()
        mu = second.payload["prev_logprobs"]
        acted, proximal = opinionated(1, cls).logprobs(states, actions), at_one.logprobs(states, actions)
    expected = float((acted - mu).abs().mean()), float((proximal - acted).abs().mean())
    assert metrics["train/mismatch/lag_1/abs_log"] == pytest.approx(expected[0], rel=1e-4)
    assert metrics["train/staleness/lag_1/abs_log"] == pytest.approx(expected[1], rel=1e-4)
    assert not any("lag_0" in name for name in metrics)


def test_the_horizon_ends_an_episode_only_where_it_is_said_to():
    given = piece(policy(0))
    plain, ending = settings_of(), settings_of(horizon_ends=True)
    cut = with_estimates(sampled(given), plain)["advantages"]
    ended = with_estimates(sampled(given), ending)["advantages"]
    bootstrap = plain.gamma * given.payload["prev_values"][-1]
    # The first environment has ended its episode before.
    assert torch.allclose((cut - ended)[-1, 1:], bootstrap[1:], atol=1e-6)
    assert torch.equal(cut[:3, 0], ended[:3, 0])


def test_every_episode_weighs_the_same_where_rlinfs_weighting_is_asked_for():
    given = piece(policy(0), ends_at=1)
    settings = settings_of(weighting="episode")
    rollout = with_estimates(sampled(given), settings)
    assert rollout["share"].sum(dim=0).tolist() == pytest.approx([HORIZON] * ENVS)
    assert rollout["share"][:, 0].tolist() == [2.0, 2.0, 0.0, 0.0]
    assert rollout["counted"].sum() == HORIZON * ENVS


def test_without_a_correction_the_acting_policy_stays_the_anchor():
    block = {"mode": "train", "train": {"correction": "none"}, "advanced": {"accept_bias": True}}
    given = piece(policy(0))
    samples = samples_of(learner_of(settings_of(block), policy(1)), given)
    ours = torch.sort(samples[PROXIMAL_FIELD]).values
    assert torch.equal(ours, torch.sort(given.payload["prev_logprobs"].flatten()).values)


@pytest.mark.parametrize("step", [HORIZON * ENVS, HORIZON * ENVS // 4])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_first_step_of_a_streamed_batch_is_normalised_by_the_batch_before_and_the_others_by_itself(
    step, epochs
):
    sizes = {"global_batch_size": step, "micro_batch_size": step, "update_epoch": epochs}
    settings = settings_of({"mode": "streamer", "advanced": {"normalization": "running"}}, **sizes)
    learner = learner_of(settings, policy(0))
    raw = [with_estimates(sampled(piece(policy(0), seed=seed)), settings) for seed in (1, 2)]
    moments = [
        (valid.mean(), valid.std(ddof=1))
        for valid in (each["advantages"][each["valid"]].double().numpy() for each in raw)
    ]
    trained = noting_samples(learner)
    for batch, seed in enumerate((1, 2)):
        trained.clear()
        learner.begin(batch)
        learner.accept([piece(policy(0), seed=seed, batch=batch)])
        learner.finish()
    # A sample is known by its state.
    values = {
        tuple(state): value
        for state, value in zip(
            raw[1]["forward_inputs"]["states"].flatten(0, 1).tolist(),
            raw[1]["advantages"].flatten().tolist(),
            strict=True,
        )
    }
    assert len(trained) == epochs * HORIZON * ENVS // step
    for number, samples in enumerate(trained):
        mean, std = moments[0 if number == 0 else 1]
        own = np.array([values[tuple(state)] for state in samples["forward_inputs"]["states"].tolist()])
        assert np.allclose(samples["advantages"].numpy(), (own - mean) / (std + 1e-5), atol=1e-5)


def test_a_batch_without_a_single_signal_moves_nothing_under_grpo():
    settings = settings_of(algorithm="grpo", group_size=3)
    model = policy(0)
    before = copy.deepcopy(model)
    given = piece(policy(0))
    given.payload["rewards"].zero_()
    samples_of(learner_of(settings, model), given)
    pairs = zip(before.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


def test_a_sample_is_as_stale_as_the_batch_is_ahead_of_its_action():
    learner = learner_of(settings_of(), policy(0))
    micro_batches = noting_samples(learner)
    learner.begin(3)
    learner.accept([piece(policy(0), batch=3, acted=1)])
    learner.finish()
    assert concatenate(micro_batches)["staleness"].unique().tolist() == [2]


def test_metrics_are_means_over_pieces_and_micro_batches():
    given = [piece(policy(0), seed=seed, place=seed) for seed in (1, 2)]
    learner = learner_of(settings_of({"mode": "train"}, total_envs=2 * ENVS, env_workers=2), policy(0))
    learner.begin(0)
    accept(learner, given)
    metrics = learner.finish()
    # What is rewarded after the end of an episode counts nothing.
    returns = [
        (one.payload["rewards"] * (one.payload["ended"][:-1].cumsum(dim=0) == 0)).sum(dim=0).mean().item()
        for one in given
    ]
    assert metrics["env/return"] == pytest.approx(sum(returns) / 2)
    assert metrics["env/success_once"] == pytest.approx(1 / ENVS)


def test_on_policy_weights_are_one_and_the_policy_has_not_moved_from_its_anchor():
    learner = learner_of(settings_of({"mode": "train"}), policy(0))
    learner.begin(0)
    learner.accept([piece(policy(0))])
    metrics = learner.finish()
    assert metrics["train/actor/behaviour_weight"] == pytest.approx(1.0)
    assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/actor/grad_norm"] > 0


def test_where_weights_are_large_the_mismatch_of_fresh_samples_is_still_logged(monkeypatch):
    monkeypatch.setattr(sections, "MAX_COMPARED_BYTES", 0)
    learner = learner_of(settings_of({"mode": "train"}), policy(0))
    learner.begin(0)
    learner.accept([piece(policy(0))])
    assert learner.finish()["train/mismatch/lag_0/kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_step_whose_gradients_are_not_finite_is_left_out_and_counted():
    model = policy()
    learner = local_learner(settings_of(), model, BusyMeter())
    before = copy.deepcopy(model.state_dict())
    bad = piece(opinionated(1))
    bad.payload["rewards"][0, 0] = float("nan")
    learner.begin(0)
    learner.accept([bad])
    assert learner.finish()["async/steps_skipped"] == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    learner.begin(1)
    learner.accept([piece(opinionated(1), batch=1)])
    assert "async/steps_skipped" not in learner.finish()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_samples_after_the_end_leave_loss_and_gradients_finite_whatever_is_in_them():
    def trained(bad):
        settings = settings_of({"mode": "off"})
        given = piece(policy())
        for name in ("prev_logprobs", "prev_values", "rewards"):
            given.payload[name][3:HORIZON, 0] = bad  # the first environment has ended with decision 2
        model = policy()
        training = LocalTraining(settings=settings, model=model)
        training.begin(0)
        rollout = training.rollout([given])
        training.estimate(rollout)
        training.train_micro_batch(training.samples(rollout, torch.arange(HORIZON * ENVS)), steps=False)
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    for clean, dirty in zip(trained(0.0), trained(float("nan")), strict=True):
        assert torch.isfinite(dirty).all()
        assert torch.allclose(clean, dirty)


@pytest.mark.parametrize(("rewards", "silent"), [(0.7, 2), (None, 0)])
def test_a_batch_reports_how_many_groups_had_no_signal(rewards, silent):
    settings = settings_of({"mode": "off"}, algorithm="grpo", group_size=3)
    training = LocalTraining(settings=settings, model=policy())
    training.begin(0)
    given = piece(policy(), ends_at=HORIZON)
    given.payload["rewards"] = torch.full((HORIZON, ENVS), rewards) if rewards else torch.rand(HORIZON, ENVS)
    training.estimate(training.rollout([given]))
    assert training.finish(lambda advantages: advantages)["train/groups_without_signal"] == silent


class Dropping(GaussianPolicy):
    """A policy with dropout, which is a policy of its own in every pass while it trains."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.backbone.append(torch.nn.Dropout(0.5))


def test_anchors_and_measured_ratios_are_scored_without_dropout_and_training_has_it():
    acting, now = opinionated(0, Dropping).eval(), opinionated(1, Dropping)
    learner = learner_of(settings_of({"mode": "train"}), now)
    learner.begin(0)
    given = piece(acting)
    rollout = learner.training.rollout([given])
    learner.training.anchor(rollout)
    inputs, *_ = learner.training.probe_samples(rollout)
    measured, _ = learner.training.score(inputs)
    assert now.training  # gradients are those of the policy with dropout, as on RLinf
    now.eval()
    logprobs, values = now.score(given.payload["forward_inputs"])
    torch.testing.assert_close(rollout[PROXIMAL_FIELD], logprobs)
    torch.testing.assert_close(rollout["prev_values"][:-1], values)
    last = now.values(given.payload["bootstrap_inputs"]["states"])
    torch.testing.assert_close(rollout["prev_values"][-1:], last)
    torch.testing.assert_close(measured, rollout[PROXIMAL_FIELD].flatten())


def test_inference_acts_and_scores_without_dropout():
    model = opinionated(0, Dropping)
    rank = InferenceRank(0, model=model, busy=BusyMeter())
    states, noise = torch.randn(ENVS, 2), torch.randn(ENVS, 2)
    acting = {"obs": {"seen": {"states": states}, "noise": noise}}
    scoring = {"samples": {"forward_inputs": {"states": states, "actions": noise}}}
    payloads = [("train", acting), ("score", scoring)]

    def ask(mode, payload):
        request = ActionRequest(shard=0, number=0, size=ENVS, payload=payload, mode=mode)
        return asyncio.run(rank.act([Pending(request=request)]))[0]

    answer, scores = (ask(*each) for each in payloads)
    rank.close()
    assert model.training
    model.eval()
    actions, logprobs, _ = model.act(states, noise)
    torch.testing.assert_close(answer["actions"][:, 0], actions)
    torch.testing.assert_close(answer["prev_logprobs"], logprobs)
    torch.testing.assert_close(scores["scores"]["logprobs"], model.logprobs(states, noise))
