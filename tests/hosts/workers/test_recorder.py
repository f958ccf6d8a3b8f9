"""What the pieces of one rollout hold, and what they say about themselves."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import torch

from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.hosts.workers.recorder import ShardRecorder
from rlinf_async.hosts.workers.shard import ShardOutput, started
from tests.hosts.workers.given import ACTION, CHUNK, settings

ENVS = 4
TICKET = Ticket(shard=0, batch=7, epoch=2, place=0, version=3)


def shown(step, *, ended=(), truncated=(), **changes):
    """Whose states and rewards say where and when they were seen."""
    states = torch.stack([torch.arange(ENVS), torch.full((ENVS,), step)], dim=1).float()
    pictures = torch.full((ENVS, 2, 2), step, dtype=torch.uint8)
    flags = torch.zeros(2, ENVS, dtype=torch.bool)
    flags[0, list(ended)] = True
    flags[1, list(truncated)] = True
    return ShardOutput(
        observation={"states": states, "main_images": pictures},
        rewards=torch.full((ENVS,), float(step)),
        ended=flags[0],
        truncated=flags[1],
        **changes,
    )


def answer(step, version, **changes):
    states = shown(step).observation["states"]
    return {
        "actions": torch.zeros(ENVS, CHUNK, ACTION),
        "version": version,
        "prev_logprobs": torch.full((ENVS, CHUNK * ACTION), float(step)),
        "prev_values": 10.0 * torch.arange(ENVS) + step,
        "forward_inputs": {"states": states},
        "echoes": {},
        **changes,
    }


def pieces(outputs, answers, *, episodes=None, every_end=False, **changes):
    made = settings(**changes)
    record = ShardRecorder(
        TICKET, settings=made, every_end=every_end, episodes=[] if episodes is None else episodes
    )
    for output, given in zip(outputs[:-1], answers[:-1], strict=True):
        record.append(output, given)
    return record.build(outputs[-1], answers[-1])


def rollout(**changes):
    outputs = [started(shown(0).observation, ENVS), *(shown(step) for step in (1, 2, 3))]
    return pieces(outputs, [answer(step, step // 2) for step in range(4)], **changes)


def test_pieces_stand_side_by_side_along_the_second_dimension():
    first, second = (piece.payload for piece in rollout())
    assert first["forward_inputs"]["states"].shape == (3, 2, 2)
    assert first["forward_inputs"]["states"][:, :, 0].tolist() == [[0, 1]] * 3
    assert second["forward_inputs"]["states"][:, :, 0].tolist() == [[2, 3]] * 3
    assert second["forward_inputs"]["states"][:, :, 1].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert first["prev_logprobs"].shape == (3, 2, CHUNK, ACTION)


def test_values_are_one_more_than_decisions_and_rewards_are_those_of_what_followed():
    first, _ = (piece.payload for piece in rollout())
    assert first["prev_values"].tolist() == [[0, 10], [1, 11], [2, 12], [3, 13]]
    assert first["rewards"].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert first["versions"].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert first["versions"].dtype == torch.int64


def test_a_piece_says_who_made_it_and_who_trains_it():
    one, two = rollout()
    assert (one.rank, two.rank) == (0, 1)
    assert (one.part, two.part) == (0, 1)
    assert (one.oldest, one.newest) == (0, 1)
    assert one.env_steps == 2 * 3 * CHUNK
    assert one.ticket is TICKET


def test_the_last_observation_is_kept_where_values_are_recomputed():
    kept = rollout()[1].payload["bootstrap_inputs"]["states"]
    assert kept.tolist() == [[[2, 3], [3, 3]]]
    on_policy = settings().asynchrony.from_mapping({})
    assert "bootstrap_inputs" not in rollout(asynchrony=on_policy)[0].payload


def test_a_policy_without_values_leaves_none():
    outputs = [started(shown(0).observation, ENVS), shown(1)]
    (piece,) = pieces(outputs, [answer(step, 0, prev_values=None) for step in range(2)], horizon=1, ranks=1)
    assert "prev_values" not in piece.payload


def test_a_rollout_that_goes_on_with_episodes_begins_with_none_ended():
    outputs = [shown(0, ended=[1]), shown(1, ended=[2])]
    (piece,) = pieces(outputs, [answer(0, 0), answer(1, 0)], horizon=1, ranks=1, auto_reset=True)
    assert piece.payload["ended"].tolist() == [[False] * 4, [False, False, True, False]]


def test_only_what_was_cut_off_and_reset_is_continued_by_its_value():
    outputs = [started(shown(0).observation, ENVS), shown(1, ended=[0, 1], truncated=[1])]
    answers = [answer(0, 0), answer(1, 0, bootstrap_values=torch.full((ENVS,), 8.0))]
    (piece,) = pieces(outputs, answers, horizon=1, ranks=1, auto_reset=True)
    assert piece.payload["rewards"].tolist() == [[1.0, 1.0 + 0.5 * 8.0, 1.0, 1.0]]
    (piece,) = pieces(outputs, answers, horizon=1, ranks=1)
    assert piece.payload["rewards"].tolist() == [[1.0] * 4]


def test_pictures_come_back_from_the_observation_that_was_asked_with():
    outputs = [started(shown(0).observation, ENVS), shown(1)]
    answers = [answer(step, 0, echoes={"pixels": "main_images"}) for step in range(2)]
    (piece,) = pieces(outputs, answers, horizon=1, ranks=1)
    data = piece.payload
    assert data["forward_inputs"]["pixels"].shape == (1, ENVS, 2, 2)
    assert data["bootstrap_inputs"]["pixels"].unique().tolist() == [1]


def test_after_an_end_pictures_go_on_and_the_last_answer_is_repeated():
    playing = Playing(numbers=(1, 3))
    outputs = [started(shown(0).observation, ENVS), shown(1, ended=[0, 2], playing=playing), shown(2)]
    some = answer(1, 0, echoes={"pixels": "main_images"})
    fields = ("actions", "prev_logprobs", "prev_values")
    some |= {name: some[name][[1, 3]] for name in fields}
    some["forward_inputs"] = {"states": some["forward_inputs"]["states"][[1, 3]]}
    answers = [answer(0, 0, echoes={"pixels": "main_images"}), some, None]
    (piece,) = pieces(outputs, answers, horizon=2, ranks=1)
    inputs = piece.payload["forward_inputs"]
    assert inputs["pixels"][1].flatten().unique().tolist() == [1]
    assert inputs["states"][1, :, 1].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("every_end", "kept"), [(True, [1, 2]), (False, [2])])
def test_episodes_are_told_as_they_end_or_once_at_the_end(every_end, kept):
    told = []
    outputs = [
        started(shown(0).observation, ENVS),
        *(shown(step, episodes={"return": torch.tensor([step])}) for step in (1, 2)),
    ]
    answers = [answer(step, 0) for step in range(3)]
    pieces(outputs, answers, episodes=told, every_end=every_end, horizon=2, ranks=1)
    assert [int(episode["return"]) for episode in told] == kept


@pytest.mark.parametrize("field", ["actions", "prev_logprobs", "prev_values", "bootstrap_values"])
def test_numbers_of_the_policy_that_are_not_finite_end_the_run(field):
    bad = answer(0, 6, bootstrap_values=torch.zeros(ENVS))
    bad[field].view(-1)[0] = float("inf")
    with pytest.raises(RuntimeError, match=f"policy of version 6 .*1 of .* {field}"):
        pieces([shown(0), shown(1)], [bad, answer(1, 6)])
