"""Rollouts as RLinf keeps them in its versions, and what the pieces of one say about themselves."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async.core.types import Ticket
from rlinf_async.hosts.rlinf.env_shard import ShardOutput
from rlinf_async.hosts.rlinf.trajectory import OUTCOME_FIELDS, EnvStep, ShardRecorder, Trajectory
from tests.hosts.rlinf.workers import ACTION, CHUNK, HORIZON, config, settings_of


def told():
    return {name: torch.full((3, 2), number) for number, name in enumerate(OUTCOME_FIELDS)}


@pytest.mark.parametrize("apart", [True, False])
def test_what_came_of_steps_is_found_beside_the_observation_or_in_its_transition(apart):
    seen = {"obs": {"states": torch.ones(3, 4), "sound": 1}, "final_obs": None}
    outcome = {"transition": SimpleNamespace(**told())} if apart else told()
    step = EnvStep.of(SimpleNamespace(**seen, **outcome))
    assert {name: getattr(step, name)[0, 0].item() for name in OUTCOME_FIELDS} == dict(
        zip(OUTCOME_FIELDS, range(6), strict=True)
    )
    assert step.obs["states"].shape == (3, 4)
    assert step.obs["main_images"] is None
    assert "sound" not in step.obs


@pytest.mark.parametrize(
    ("kind", "last"), [("standard", [False, True, False]), ("always", [True, True, False])]
)
def test_the_value_beyond_the_end_is_added_where_rlinf_adds_it(kind, last):
    ends = {
        "terminations": torch.tensor([[False, True], [False, False], [True, False]]),
        "truncations": torch.tensor([[False, False], [False, True], [False, False]]),
    }
    step = EnvStep(
        obs={}, rewards=torch.zeros(3, 2), dones=ends["terminations"] | ends["truncations"], **ends
    )
    algorithm = OmegaConf.create({"gamma": 0.5, "bootstrap_type": kind})
    found = step.rewards_with(torch.tensor([[2.0], [4.0], [6.0]]), algorithm)
    expected = torch.where(torch.tensor(last), torch.tensor([1.0, 2.0, 3.0]), 0.0)
    assert torch.equal(found, torch.stack([torch.zeros(3), expected], dim=1))
    assert not step.rewards.any()


def test_a_hand_that_acts_before_the_first_decision_changes_nothing():
    trajectory = Trajectory()
    trajectory.correct(torch.ones(3, 4), torch.ones(3, 2, dtype=torch.bool))
    trajectory.decide({"action": torch.zeros(3, 4), "mask": None}, torch.zeros(3, 4), version=2)
    whole = trajectory.whole()
    assert not whole["actions"].any()
    assert whole["versions"].tolist() == [[[2.0], [2.0], [2.0]]]
    assert set(whole["forward_inputs"]) == {"action"}


ENVS = 6
TICKET = Ticket(shard=1, batch=7, epoch=2, place=0, version=3)


def output(step, *, info=None):
    """Whose states say where and when they were seen."""
    states = torch.stack([torch.arange(ENVS), torch.full((ENVS,), step)], dim=1).float()
    picture = torch.full((ENVS, 2, 2), step, dtype=torch.uint8)
    ends = torch.zeros(ENVS, CHUNK, dtype=torch.bool)
    rewards = torch.full((ENVS, CHUNK), float(step))
    seen = {"states": states, "main_images": picture}
    return ShardOutput(
        EnvStep(obs=seen, rewards=rewards, dones=ends, terminations=ends, truncations=ends), info or {}
    )


def answer(step, version, *, echoes=None):
    return {
        "actions": torch.zeros(ENVS, CHUNK, ACTION),
        "version": version,
        "prev_logprobs": torch.full((ENVS, CHUNK * ACTION), float(step)),
        "prev_values": torch.full((ENVS, 1), float(step)),
        "bootstrap_values": None,
        "forward_inputs": {
            "states": output(step).env.obs["states"],
            "action": torch.full((ENVS, CHUNK * ACTION), float(step)),
        },
        "echoes": echoes or {},
    }


def recorder(*overrides, episodes=None):
    cfg = config(*overrides)
    episodes = [] if episodes is None else episodes
    return ShardRecorder(TICKET, settings=settings_of(cfg, ranks=4), cfg=cfg, episodes=episodes)


def pieces_of(versions, *overrides, last=None, echoes=None):
    """The rollout whose decisions were made by `versions`, and whose last value was `last`'s."""
    made = []
    record = recorder(*overrides, episodes=made)
    for step, version in enumerate(versions):
        record.append(
            output(step, info={"return": torch.tensor([step])}), answer(step, version, echoes=echoes)
        )
    end = len(versions)
    closing = answer(end, last if last is not None else versions[-1], echoes=echoes)
    return record.build(output(end, info={"return": torch.tensor([end])}), closing), made


def test_a_piece_is_as_old_as_its_oldest_action_whichever_came_first():
    for piece in pieces_of([4, 3, 6, 5, 5])[0]:
        assert (piece.oldest, piece.newest) == (3, 6)
        assert piece.staleness == 4


def test_the_policy_that_only_values_the_last_observation_does_not_act():
    for piece in pieces_of([4, 4, 5, 5, 5], last=9)[0]:
        assert (piece.oldest, piece.newest) == (4, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_decision_keeps_the_version_that_made_it(dtype):
    """Whatever type environments have made the default: a half has no number 1003."""
    made = [1004, 1003, 1006, 1005, 1005]
    torch.set_default_dtype(dtype)
    try:
        pieces = pieces_of(made)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    for piece in pieces:
        versions = piece.payload["versions"]
        assert versions.dtype == torch.float32
        assert versions.shape == (HORIZON, 3, 1)
        assert (versions[..., 0] == torch.tensor(made)[:, None]).all()


def test_a_piece_counts_the_steps_of_its_environments_up_to_the_horizon():
    assert [piece.env_steps for piece in pieces_of([0] * HORIZON)[0]] == [3 * HORIZON * CHUNK] * 2
    assert [piece.env_steps for piece in pieces_of([0] * 3)[0]] == [3 * HORIZON * CHUNK] * 2


def test_each_part_has_the_bootstrap_inputs_of_its_own_environments():
    first, second = (piece.payload["bootstrap_inputs"] for piece in pieces_of([0] * HORIZON)[0])
    assert first["states"].tolist() == [[[0, HORIZON], [1, HORIZON], [2, HORIZON]]]
    assert second["states"].tolist() == [[[3, HORIZON], [4, HORIZON], [5, HORIZON]]]


def test_bootstrap_inputs_have_the_pictures_that_stayed_behind():
    for piece in pieces_of([0] * HORIZON, echoes={"image": "main_images"})[0]:
        data = piece.payload
        assert (data["bootstrap_inputs"]["image"] == HORIZON).all()
        assert data["forward_inputs"]["image"][:, 0, 0, 0].tolist() == list(range(HORIZON))


@pytest.mark.parametrize("overrides", [("async.mode=rollout",), ("async.advanced.proximal=loglinear",)])
def test_nothing_is_kept_for_values_that_nobody_recomputes(overrides):
    for piece in pieces_of([0] * HORIZON, *overrides)[0]:
        assert "bootstrap_inputs" not in piece.payload


def test_the_parts_of_a_rollout_go_to_the_ranks_of_their_environments():
    pieces, _ = pieces_of([0] * HORIZON)
    assert [(piece.part, piece.rank, piece.size, piece.ticket) for piece in pieces] == [
        (0, 0, 3, TICKET),
        (1, 1, 3, TICKET),
    ]
    for piece in pieces:
        states = piece.payload["forward_inputs"]["states"]
        assert states[0, :, 0].tolist() == [3 * piece.part + env for env in range(3)]


def test_values_have_a_row_more_than_actions():
    for piece in pieces_of([0] * HORIZON)[0]:
        data = piece.payload
        assert data["prev_values"][:, 0, 0].tolist() == list(range(HORIZON + 1))
        assert data["prev_logprobs"][:, 0, 0].tolist() == list(range(HORIZON))
        assert data["actions"][:, 0, 0].tolist() == list(range(HORIZON))
        assert len(data["dones"]) == len(data["rewards"]) == HORIZON + 1


def test_what_a_hand_did_takes_the_place_of_the_action_before():
    flags = torch.zeros(ENVS, CHUNK, dtype=torch.bool)
    flags[::2, 0] = True
    hand = torch.arange(ENVS * CHUNK * ACTION).reshape(ENVS, -1) + 100.0
    record = recorder()
    for step in range(HORIZON):
        seen = output(step)
        if step == 2:
            seen.env.intervene_actions, seen.env.intervene_flags = hand, flags
        record.append(seen, answer(step, 0))
    pieces = record.build(output(HORIZON), answer(HORIZON, 0))
    found = torch.cat([piece.payload["actions"] for piece in pieces], dim=1)
    policy = torch.arange(float(HORIZON))[:, None, None].expand(-1, ENVS, CHUNK * ACTION).clone()
    policy[1, ::2, :ACTION] = hand[::2, :ACTION]
    assert torch.equal(found, policy)
    inputs = torch.cat([piece.payload["forward_inputs"]["action"] for piece in pieces], dim=1)
    assert torch.equal(inputs, policy)


def test_the_value_of_a_last_observation_is_added_to_the_reward_of_an_episode_that_was_cut():
    record = recorder("env.train.auto_reset=true")
    for step in range(HORIZON):
        seen, said = output(step), answer(step, 0)
        if step == 3:
            seen.env.dones = seen.env.truncations = seen.env.dones.clone()
            seen.env.truncations[1, -1] = True
            said["bootstrap_values"] = torch.arange(float(ENVS))[:, None] + 20.0
        record.append(seen, said)
    pieces = record.build(output(HORIZON), answer(HORIZON, 0))
    found = torch.cat([piece.payload["rewards"] for piece in pieces], dim=1)
    expected = torch.arange(HORIZON + 1.0)[:, None, None].expand(-1, ENVS, CHUNK).clone()
    expected[3, 1, -1] += config().algorithm.gamma * 21.0
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("overrides", "noted"),
    [
        ((), [HORIZON]),
        (("env.train.auto_reset=true",), list(range(HORIZON + 1))),
        (("env.train.ignore_terminations=true",), list(range(HORIZON + 1))),
    ],
)
def test_episode_statistics_are_noted_when_rlinf_would(overrides, noted):
    _, episodes = pieces_of([0] * HORIZON, *overrides)
    assert [int(info["return"]) for info in episodes] == noted


@pytest.mark.parametrize("field", ["actions", "prev_logprobs", "prev_values", "bootstrap_values"])
def test_numbers_of_the_policy_that_are_not_finite_end_the_run_before_they_are_acted(field):
    bad = answer(1, 6) | {"bootstrap_values": torch.zeros(ENVS)}
    bad[field].view(-1)[0] = float("inf")
    with pytest.raises(RuntimeError, match=f"policy of version 6 .*1 of .* {field}"):
        recorder().append(output(1), bad)
