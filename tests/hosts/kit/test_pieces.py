"""Pieces that end with their episodes, beside those of a rollout to its horizon."""

import random

import pytest
import torch

from rlinf_async.core.objectives import gae, valid_steps
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.hosts.kit.pieces import cut_into_pieces
from rlinf_async.hosts.kit.playing import Playing, as_they_ended
from rlinf_async.hosts.kit.samples import side_by_side
from tests.making import run_settings, ticket

HORIZON, ENVS, CHUNK = 6, 4, 3
PLAN = ShardPlan(total_envs=ENVS, env_workers=1, inference_ranks=1, learner_ranks=2, shards_per_worker=1)
SETTINGS = run_settings(plan=PLAN, horizon=HORIZON)


def rollout(lengths, generator):
    """A rollout in which environment b ends with decision `lengths[b]`, beyond the horizon if it does not."""
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    ended = torch.arange(HORIZON + 1)[:, None] >= torch.tensor(lengths)[None]
    rewards = torch.where(ended[:-1], 0.0, draw(HORIZON, ENVS))
    return {
        "forward_inputs": {"states": draw(HORIZON, ENVS, 2)},
        "prev_logprobs": draw(HORIZON, ENVS),
        "prev_values": draw(HORIZON + 1, ENVS),
        "rewards": rewards,
        "ended": ended,
    }


def cut(fields, lengths, *, stand):
    decisions = min(HORIZON, max(lengths))
    shown = {
        name: {"states": field["states"][:decisions]}
        if isinstance(field, dict)
        else field[: decisions + len(field) - HORIZON]
        for name, field in fields.items()
    }
    played = [
        Playing.after(torch.tensor([length <= row for length in lengths]), others_stand=stand)
        for row in range(decisions)
    ]
    beyond = {"states": torch.full((1, ENVS, 2), 5.0)}
    return cut_into_pieces(
        ticket(),
        shown,
        beyond,
        settings=SETTINGS,
        versions=[0] * decisions,
        played=played,
        steps_per_decision=CHUNK,
    )


@pytest.mark.parametrize("seed", range(30))
def test_what_is_trained_is_that_of_rollouts_to_the_horizon(seed):
    lengths = [random.Random(seed + 100 * env).randint(1, HORIZON + 2) for env in range(ENVS)]
    fields = rollout(lengths, torch.Generator().manual_seed(seed))
    pieces = cut(fields, lengths, stand=True)
    joined = side_by_side([piece.payload for piece in pieces], HORIZON)
    assert joined.pop("bootstrap_inputs")["states"].shape == (1, ENVS, 2)
    valid = valid_steps(fields["ended"])
    assert torch.equal(valid_steps(joined["ended"]), valid)
    assert torch.equal(joined["rewards"], fields["rewards"])
    for name in ("prev_logprobs", "prev_values"):
        assert joined[name].shape == fields[name].shape
        assert torch.equal(joined[name][:HORIZON][valid], fields[name][:HORIZON][valid])
    states = [tree["forward_inputs"]["states"] for tree in (joined, fields)]
    assert torch.equal(*(each[valid] for each in states))
    estimates = [
        gae(tree["rewards"], tree["prev_values"], tree["ended"], gamma=0.9, lam=0.8)
        for tree in (joined, fields)
    ]
    for ours, theirs in zip(*estimates, strict=True):
        assert torch.equal(ours[valid], theirs[valid])


@pytest.mark.parametrize("stand", [True, False])
def test_a_piece_ends_with_its_own_episodes_and_says_what_was_left_out(stand):
    lengths = [1, 2, 4, 3]
    fields = rollout(lengths, torch.Generator().manual_seed(0))
    first, second = cut(fields, lengths, stand=stand)
    assert [len(piece.payload["prev_logprobs"]) for piece in (first, second)] == [2, 4]
    assert [len(piece.payload["prev_values"]) for piece in (first, second)] == [3, 5]
    assert (first.skipped_decisions, second.skipped_decisions) == (5 + 4, 2 + 3)
    # Where the others are stepped, too, all are until the last of the shard ends.
    steps = [(5 + 4) * CHUNK, (2 + 3) * CHUNK] if stand else [2 * 2 * CHUNK] * 2
    assert [piece.skipped_env_steps for piece in (first, second)] == steps
    assert {piece.env_steps for piece in (first, second)} == {2 * HORIZON * CHUNK}


def test_statistics_stay_as_they_were_when_an_episode_ended():
    over = torch.tensor([True, False])
    before = {"return": torch.tensor([1.0, 0.0]), "gone": torch.zeros(2)}
    now = {"return": torch.tensor([-4.0, 2.0]), "new": torch.ones(2)}
    assert {name: value.tolist() for name, value in as_they_ended(now, before, over=over).items()} == {
        "return": [1.0, 2.0],
        "new": [1.0, 1.0],
    }
