"""Rewards of a reward model, and what may go wrong with them; `test_beside_rlinf` has RLinf's beside them."""

import asyncio

import pytest
import ray
import torch
from omegaconf import OmegaConf

from rlinf_async.core.failures import DeadlineError
from rlinf_async.hosts.rlinf.rewards import RewardQueue, RewardWorker, ShardRewards, at_first_end, split
from rlinf_async.hosts.rlinf.trajectory import EnvStep

SECTION = OmegaConf.create({"reward_mode": "per_step"})


def step(**changes):
    flags = torch.zeros(2, 3, dtype=torch.bool)
    given = {"obs": {"states": torch.ones(2, 4)}, "rewards": torch.ones(2, 3), "dones": flags}
    return EnvStep(**{**given, "terminations": flags, "truncations": flags, **changes})


def added(answer, *, section=SECTION, **changes):
    async def ask(shown):
        return answer

    made = step(**changes)

    async def main():
        ShardRewards(section, RewardQueue(ask, most_environments=2), 2).begin(made)
        await made.scored()

    asyncio.run(main())
    return made


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (torch.ones(2), r"rewards \[2\] for 2 environments; expected was \[2, 1\] or \[2, 3\]"),
        (torch.ones(3, 1), r"rewards \[3, 1\] for 2 environments"),
        (torch.full((2, 1), torch.nan), "rewards that are not finite"),
    ],
)
def test_what_cannot_be_a_reward_ends_the_run(answer, words):
    with pytest.raises(RuntimeError, match=words):
        added(answer)


def test_a_model_that_has_nothing_to_say_leaves_the_rewards_of_the_environments():
    assert torch.equal(added(None).rewards, torch.ones(2, 3))


def test_rewards_of_every_step_are_mixed_as_those_of_a_decision_are():
    section = OmegaConf.create({"reward_weight": 2.0, "env_reward_weight": 3.0})
    each = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(added(each, section=section).rewards, 3 + 2 * each)


def test_observations_that_nobody_needs_the_value_of_are_not_sent():
    final = {"states": torch.ones(2, 4)}
    ended = torch.tensor([[False, False, True], [False] * 3])
    assert added(torch.ones(2, 1), final_obs=final).final_obs is None
    assert added(torch.ones(2, 1), final_obs=final, dones=ended).final_obs is not None


def test_the_reward_of_an_end_belongs_to_the_first_step_that_ended():
    dones = torch.tensor([[False, True, True], [False, False, False], [True, False, False]])
    found = at_first_end(torch.tensor([[5.0], [6.0], [7.0]]), dones)
    assert found.tolist() == [[0, 5, 0], [0, 0, 0], [7, 0, 0]]


class Handle:
    def __init__(self, answer):
        self.answer = answer

    @property
    def compute_reward(self):
        return self

    async def remote(self, shown):
        return await self.answer(shown)


def worker(answer, deadline_s=60.0):
    return RewardWorker(rank=1, handle=Handle(answer), deadline_s=deadline_s)


def test_a_reward_worker_that_is_silent_or_dead_is_named():
    async def silence(shown):
        await asyncio.Event().wait()

    async def death(shown):
        raise ray.exceptions.ActorDiedError

    with pytest.raises(DeadlineError, match=r"waited 0\.01 s for the rewards of reward worker 1"):
        asyncio.run(worker(silence, deadline_s=0.01)({}))
    with pytest.raises(RuntimeError, match="reward worker 1 has died"):
        asyncio.run(worker(death)({}))


def shown(*rows, **changes):
    """Inputs from environments whose scores are `rows`."""
    states = torch.tensor(rows, dtype=torch.float32)[:, None]
    dones = torch.zeros(len(rows), dtype=torch.bool)
    return {"states": states, "dones": dones, "task_descriptions": ["walk"] * len(rows), **changes}


def scored(inputs, *, most, failing=()):
    """Scores of `inputs` that are put while a first call is under way: (answers or errors, calls)."""
    calls = []

    async def score(inputs):
        calls.append(inputs["states"].flatten().tolist())
        await asyncio.sleep(0)
        if set(calls[-1]) & set(failing):
            raise RuntimeError("the model has failed")
        return inputs["states"] * 10

    async def main():
        queue = RewardQueue(score, most_environments=most)
        first = queue.put(shown(0))
        await asyncio.sleep(0)  # the call begins
        answers = [queue.put(each) for each in inputs]
        await first
        return await asyncio.gather(*answers, return_exceptions=True)

    return asyncio.run(main()), calls


def test_inputs_that_come_during_a_call_share_the_next_up_to_rlinfs_largest_batch():
    answers, calls = scored([shown(1, 2), shown(3), shown(4, 5), shown(6)], most=4)
    assert calls == [[0], [1, 2, 3], [4, 5, 6]]
    assert [answer.flatten().tolist() for answer in answers] == [[10, 20], [30], [40, 50], [60]]


@pytest.mark.parametrize(
    "unlike",
    [
        {"env_infos": {"success": torch.zeros(1)}},
        {"history_input": {"window": {"states": [[torch.ones(3)]]}}},
        {"states": torch.ones(1, 2)},
        {"env_infos": {"episode": {"return": torch.tensor(1.0)}}},
    ],
    ids=["other names", "histories", "other shapes", "no row for each environment"],
)
def test_inputs_of_another_form_have_a_call_of_their_own(unlike):
    _, calls = scored([shown(1), shown(2, **unlike), shown(3), shown(4)], most=9)
    assert [len(call) for call in calls] == [1, 1, 2 if "states" in unlike else 1, 2]


def test_histories_are_never_joined():
    each = {"history_input": {"window": {"states": [[torch.ones(3)]]}}}
    _, calls = scored([shown(1, **each), shown(2, **each)], most=9)
    assert calls == [[0], [1], [2]]


def test_a_call_that_fails_fails_for_all_that_shared_it_and_for_no_other():
    answers, calls = scored([shown(1, 2), shown(3), shown(4, 5)], most=3, failing={2})
    assert calls == [[0], [1, 2, 3], [4, 5]]
    assert [str(answer) for answer in answers[:2]] == ["the model has failed"] * 2
    assert answers[2].flatten().tolist() == [40, 50]


def test_scores_of_joined_inputs_without_a_row_for_each_environment_are_refused():
    with pytest.raises(RuntimeError, match=r"rewards \[2, 1\] for 3 environments; expected was \[3, 1\]"):
        split(torch.ones(2, 1), [1, 2])
