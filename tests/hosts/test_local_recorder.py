"""What the recorder of the local host makes of a rollout."""

from dataclasses import replace

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.local.shard import RolloutRecorder
from rlinf_async.hosts.workers.shard import ShardOutput
from tests.making import run_settings

ENVS, STEPS = 4, 3
TICKET = Ticket(shard=1, batch=7, epoch=2, place=0, version=3)
PLAN = ShardPlan(total_envs=8, env_workers=2, inference_ranks=1, learner_ranks=4, shards_per_worker=1)
SETTINGS = run_settings(plan=PLAN, horizon=STEPS, asynchrony=AsyncConfig.from_mapping({"mode": "train"}))


def rows(number):
    """[ENVS, 1]: which environment, and at which moment it was seen."""
    return torch.arange(float(ENVS))[:, None] + 10.0 * number


def output(step):
    ended = torch.full((ENVS,), step == STEPS)
    uncut = torch.zeros(ENVS, dtype=torch.bool)
    seen = {"states": rows(step)}
    return ShardOutput(observation=seen, rewards=rows(step)[:, 0], ended=ended, truncated=uncut)


def answer(step, version):
    seen = rows(step)
    return {
        "actions": seen[:, None] + 0.25,
        "prev_logprobs": seen[:, 0] + 0.5,
        "prev_values": seen[:, 0] + 0.75,
        "forward_inputs": {"states": seen, "actions": seen + 0.25},
        "echoes": {},
        "version": version,
    }


def test_where_a_policy_says_what_it_is_scored_by_a_piece_holds_that():
    record = RolloutRecorder(TICKET, settings=SETTINGS)

    def at(step):
        return output(step), answer(step, 3) | {"forward_inputs": {"prompt": {"tokens": rows(step) + 0.125}}}

    for step in range(STEPS):
        record.append(*at(step))
    for part, piece in enumerate(record.build(*at(STEPS))):
        own = slice(2 * part, 2 * part + 2)
        expected = torch.stack([rows(step)[own] + 0.125 for step in range(STEPS + 1)])
        for name, part_of in {"forward_inputs": expected[:-1], "bootstrap_inputs": expected[-1:]}.items():
            assert torch.equal(piece.payload[name]["prompt"]["tokens"], part_of)


def test_steps_of_a_decision_are_counted_where_an_action_has_several():
    record = RolloutRecorder(TICKET, settings=SETTINGS)

    def chunks(step):
        return answer(step, 3) | {"actions": torch.zeros(ENVS, 5, 2)}

    for step in range(STEPS):
        record.append(output(step), chunks(step))
    assert {piece.env_steps for piece in record.build(output(STEPS), chunks(STEPS))} == {2 * STEPS * 5}


def test_a_piece_says_which_ends_were_cuts():
    record = RolloutRecorder(TICKET, settings=SETTINGS)
    for step in range(STEPS):
        record.append(output(step), answer(step, 3))
    cut = torch.tensor([True, False, False, True])
    first, second = record.build(replace(output(STEPS), truncated=cut), answer(STEPS, 3))
    assert first.payload["truncated"].tolist() == [[False, False]] * STEPS + [[True, False]]
    assert second.payload["truncated"].tolist() == [[False, False]] * STEPS + [[False, True]]
