"""Advantages by veRL's estimators, and by ours where veRL has none."""

import numpy as np
import pytest
import torch

from rlinf_async.core.objectives import gae
from rlinf_async.core.tensors import concatenate
from rlinf_async.hosts.verl.advantages import estimate_batch, estimate_pieces, silent_groups, valid_decisions
from rlinf_async.hosts.verl.algorithms import COMPARING_ESTIMATORS, GROUP_ESTIMATORS
from tests.hosts.verl.engines import config, pieces, rollout, settings

from verl.trainer.ppo import core_algos  # isort: skip

ALGORITHM = config().algorithm


def sequences(fields):
    """Rewards, values and mask [B, T], as veRL has them."""
    mask = (~fields["ended"][:-1]).float()
    held = (fields["rewards"] * mask, fields["prev_values"][:-1], mask)
    return [tensor.T.contiguous() for tensor in held]


def test_the_advantages_of_a_whole_batch_are_those_of_verls_gae_to_the_last_bit():
    of = settings()
    fields = rollout(of, seed=3)
    rewards, values, mask = sequences(fields)
    advantages, returns = estimate_batch(fields, of, ALGORITHM)
    expected = core_algos.compute_gae_advantage_return(rewards, values, mask, of.gamma, of.lam)
    assert torch.equal(advantages, expected[0].T)
    assert torch.equal(returns, expected[1].T)


def test_streamed_gae_differs_from_verls_by_the_normalisation_alone():
    of = settings(asynchrony={"mode": "streamer"})
    fields = rollout(of, seed=3)
    raw, returns = estimate_pieces(fields, of, ALGORITHM)
    rewards, values, mask = sequences(fields)
    whitened, expected = core_algos.compute_gae_advantage_return(rewards, values, mask, of.gamma, of.lam)
    valid = valid_decisions(fields, of)
    assert torch.allclose(returns[valid], expected.T[valid], atol=1e-6)
    ours = (raw[valid] - raw[valid].mean()) / raw[valid].std()
    assert torch.allclose(ours, whitened.T[valid], atol=1e-5)


@pytest.mark.parametrize("norm_by_std", [True, False])
@pytest.mark.parametrize("name", sorted(GROUP_ESTIMATORS))
def test_estimators_of_groups_say_the_same_piece_by_piece_as_over_the_batch(name, norm_by_std):
    of = settings(
        asynchrony={"mode": "streamer"},
        estimator=name,
        norm_by_std=norm_by_std,
        normalizes=False,
        group_size=4,
    )
    fields = rollout(of)
    rewards, _, mask = sequences(fields)
    known = {"norm_adv_by_std_in_grpo": norm_by_std} if name.startswith("grpo") else {}
    expected, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards.clone(),
        response_mask=mask,
        index=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        config=ALGORITHM,
        **known,
    )
    parts = [estimate_pieces(one.payload, of, ALGORITHM)[0] for one in pieces(of, fields)]
    assert len(parts) == 2
    assert torch.equal(torch.cat(parts, dim=1), expected.T)
    assert torch.equal(estimate_batch(fields, of, ALGORITHM)[0], expected.T)


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "gpg"])
def test_an_estimator_that_looks_at_the_batch_is_given_all_of_it_and_never_a_piece(name):
    of = settings(estimator=name, group_size=4)
    fields = rollout(of)
    rewards, _, mask = sequences(fields)
    expected, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards.clone(),
        response_mask=mask,
        index=np.arange(8) // 4,
        config=ALGORITHM,
    )
    assert torch.equal(estimate_batch(fields, of, ALGORITHM)[0], expected.T)
    with pytest.raises(ValueError, match=f"adv_estimator={name} needs the whole batch"):
        estimate_pieces(pieces(of, fields)[0].payload, of, ALGORITHM)


def test_where_environments_reset_themselves_the_cut_is_valued_and_every_decision_counts():
    of = settings(auto_reset=True)
    fields = rollout(of)
    fields["ended"] = torch.rand(5, 8, generator=torch.Generator().manual_seed(1)) < 0.3
    raw, returns = gae(fields["rewards"], fields["prev_values"], fields["ended"], gamma=of.gamma, lam=of.lam)
    advantages, found = estimate_batch(fields, of, ALGORITHM)
    assert torch.equal(found, returns)
    assert torch.allclose(advantages, (raw - raw.mean()) / raw.std(), atol=1e-5)
    assert torch.equal(estimate_pieces(fields, of, ALGORITHM)[0], raw)
    assert valid_decisions(fields, of).all()


def test_pieces_side_by_side_are_estimated_as_the_whole():
    of = settings(asynchrony={"mode": "streamer"})
    fields = rollout(of)
    parts = [estimate_pieces(one.payload, of, ALGORITHM)[0] for one in pieces(of, fields)]
    whole = concatenate([one.payload for one in pieces(of, fields)], dim=1)
    assert torch.equal(torch.cat(parts, dim=1), estimate_pieces(whole, of, ALGORITHM)[0])


def test_a_group_without_signal_has_no_advantage_and_is_counted():
    of = settings(asynchrony={"mode": "streamer"}, estimator="grpo", normalizes=False, group_size=4)
    fields = rollout(of, seed=5)
    before, _ = estimate_pieces(fields, of, ALGORITHM)
    fields["ended"][:, :4] = False
    fields["rewards"][:, :4] = 0.7
    advantages, returns = estimate_pieces(fields, of, ALGORITHM)
    assert (advantages[:, :4] == 0).all()
    assert (returns[:, :4] == 0).all()
    assert torch.equal(advantages[:, 4:], before[:, 4:])
    assert silent_groups(fields, of) == 1


@pytest.mark.parametrize("estimator", sorted(COMPARING_ESTIMATORS))
def test_a_batch_without_any_signal_has_no_advantage_whoever_compares_its_members(estimator):
    of = settings(asynchrony={"mode": "train"}, estimator=estimator, normalizes=True, group_size=4)
    fields = rollout(of, seed=5)
    fields["ended"][:] = False
    fields["rewards"][:] = 171.3
    fields["rewards"][0, ::4] += 1e-4  # lost in the sum
    advantages, _ = estimate_batch(fields, of, ALGORITHM)
    assert (advantages == 0).all()
    fields["rewards"][0, 0] += 1.0
    advantages, _ = estimate_batch(fields, of, ALGORITHM)
    assert advantages.abs().max() > 0.1
