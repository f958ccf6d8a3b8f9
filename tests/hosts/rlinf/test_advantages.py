from copy import deepcopy

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rlinf.algorithms.registry import register_advantage

from rlinf_async.hosts.rlinf.advantages import GroupAdvantages, estimate
from rlinf_async.hosts.rlinf.keys import TABLE
from tests.hosts.rlinf.given import BASE, SYNCER

STEPS, ENVS, CHUNKS, DIMS = 5, 8, 2, 3


def config(adv_type="gae", rewards="chunk_level"):
    return OmegaConf.create(
        {
            "runner": {"task_type": "embodied"},
            "algorithm": {
                "adv_type": adv_type,
                "reward_type": rewards,
                "group_size": 4,
                "gamma": 0.9,
                "gae_lambda": 0.95,
            },
            "actor": {"model": {"action_dim": DIMS}},
        }
    )


def rollout(rewards="chunk_level", seed=0):
    rng = np.random.default_rng(seed)
    width = 1 if rewards == "chunk_level" else CHUNKS

    def tensor(*shape):
        return torch.tensor(rng.normal(size=shape), dtype=torch.float32)

    dones = torch.tensor(rng.random((STEPS + 1, ENVS, CHUNKS)) < 0.15)
    mask = torch.tensor(rng.random((STEPS, ENVS, width)) < 0.8)
    behaviour = tensor(STEPS, ENVS, CHUNKS * DIMS)
    return {
        "rewards": tensor(STEPS, ENVS, CHUNKS),
        "dones": dones,
        "prev_values": tensor(STEPS + 1, ENVS, width),
        "loss_mask": mask,
        "loss_mask_sum": mask.sum(dim=0, keepdim=True).expand_as(mask),
        "prev_logprobs": behaviour,
        "proximal_logprobs": behaviour + 0.2 * tensor(STEPS, ENVS, CHUNKS * DIMS),
    }


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_groups_of_pieces_that_arrive_in_any_order_are_those_of_the_whole_batch(order):
    given = rollout()
    whole = estimate(config("grpo"), given, normalize=True)["advantages"]
    found = torch.zeros_like(whole)
    for piece in order:
        part = {name: field[:, 4 * piece : 4 * piece + 4] for name, field in given.items()}
        found[:, 4 * piece : 4 * piece + 4] = estimate(config("grpo"), part, normalize=False)["advantages"]
    assert torch.equal(found, whole)
    assert whole.abs().max() > 0.5


def test_a_group_without_signal_has_no_advantage_and_is_counted_and_others_are_rlinfs():
    given = rollout()
    theirs = estimate(config("grpo"), given, normalize=True)["advantages"]
    groups = GroupAdvantages().register()
    try:
        assert GroupAdvantages()._base is groups._base  # whoever registers again wraps RLinf's own
        assert torch.equal(estimate(config("grpo"), given, normalize=True)["advantages"], theirs)
        assert groups.pop_silent() == 0
        given["rewards"][:, :4] = 0.7
        given["dones"][:, :4] = False
        found = estimate(config("grpo"), given, normalize=True)["advantages"]
        assert (found[:, :4] == 0).all()
        assert torch.equal(found[:, 4:], theirs[:, 4:])
        assert (groups.pop_silent(), groups.pop_silent()) == (1, 0)
    finally:
        register_advantage("grpo")(groups._base)


def test_seven_members_whose_scores_are_equal_up_to_rounding_have_no_advantage():
    """RLinf divides what rounding leaves of seven scores of 0.7 by its own deviation."""
    members, cfg = 7, config("grpo")
    cfg.algorithm.group_size = members
    given = {
        "rewards": torch.zeros(STEPS, 2 * members, CHUNKS),
        "dones": torch.zeros(STEPS + 1, 2 * members, CHUNKS, dtype=torch.bool),
        "loss_mask": torch.ones(STEPS, 2 * members, 1, dtype=torch.bool),
    }
    given["rewards"][2, :members, 0] = 0.7
    given["rewards"][2, members:, 0] = torch.arange(float(members))
    theirs = estimate(cfg, given, normalize=True)["advantages"]
    assert theirs[:, :members].abs().min() > 0.01
    groups = GroupAdvantages().register()
    try:
        found = estimate(cfg, given, normalize=True)["advantages"]
        assert (found[:, :members] == 0).all()
        assert torch.equal(found[:, members:], theirs[:, members:])
        # Pieces of one batch are estimated one by one, and some of them twice.
        estimate(cfg, given, normalize=True)
        with groups.uncounted():
            estimate(cfg, given, normalize=True)
        assert (groups.pop_silent(), groups.pop_silent()) == (2, 0)
    finally:
        register_advantage("grpo")(groups._base)


@pytest.mark.parametrize("unmasked", [["env.train.auto_reset"], ["env.train.ignore_terminations"]])
@pytest.mark.parametrize("filters", [False, True])
def test_grpo_without_any_mask_ends_in_rlinfs_advantages_and_is_refused_before(unmasked, filters):
    given = rollout()
    mask = {} if filters else {"loss_mask": None, "loss_mask_sum": None}
    cfg = deepcopy(BASE) | SYNCER
    cfg["algorithm"] |= {"adv_type": "grpo", "loss_type": "actor", "group_size": 4, "filter_rewards": filters}
    cfg["algorithm"] |= {"rewards_lower_bound": 0, "rewards_upper_bound": 1}
    for key in unmasked:
        cfg["env"]["train"][key.rpartition(".")[2]] = True
    reasons = list(TABLE.conflict_reasons(cfg))
    if filters:
        assert (reasons, len(estimate(config("grpo"), given, normalize=True)["advantages"])) == ([], STEPS)
        return
    assert [one.override for one in reasons] == [f"{key}=false" for key in unmasked]
    with pytest.raises(TypeError, match="must be Tensor, not NoneType"):
        estimate(config("grpo"), given | mask, normalize=True)


def test_grpo_gives_a_critic_no_returns_and_is_refused_with_its_loss():
    assert estimate(config("grpo"), rollout(), normalize=True).get("returns") is None
    cfg = deepcopy(BASE) | SYNCER
    cfg["algorithm"] |= {"adv_type": "grpo", "loss_type": "actor_critic", "group_size": 4}
    (reason,) = TABLE.conflict_reasons(cfg)
    assert reason.override == "algorithm.loss_type=actor"
    cfg["algorithm"] |= {"loss_type": "actor"}
    assert not list(TABLE.conflict_reasons(cfg))
