"""Rewards of a reward model: those of RLinf's env worker, and what may go wrong with them."""

import asyncio

import pytest
import ray
import torch
from omegaconf import OmegaConf

from rlinf_async.core.failures import DeadlineError
from rlinf_async.hosts.rlinf.rewards import RewardWorker, ShardRewards, at_first_end
from rlinf_async.hosts.rlinf.trajectory import EnvStep
from tests.hosts.rlinf.workers import Scorer, collected_by_rlinf, collected_by_us, config, in_one_process

ROLLOUTS = 3
MODEL = (
    "+cluster.component_placement.reward=0-0",
    "++reward={use_reward_model: true, group_name: RewardGroup, reward_weight: 0.5, env_reward_weight: 0.25}",
)
HISTORY = (
    "+reward.reward_mode=history_buffer",
    "+reward.model={history_buffers: {window: {history_size: 3, min_history_size: 2, input_interval: 1,"
    " history_keys: [states], input_on_done: false}, last: {history_size: 2, min_history_size: 1,"
    " input_interval: 1, history_keys: [states]}}}",
)
SPREAD = (*HISTORY, "+reward.history_reward_assign=true")
RESETS = ("env.train.auto_reset=true",)
ALWAYS = (*RESETS, "algorithm.bootstrap_type=always")
CASES = {
    "each step": (),
    "each step, resets": RESETS,
    "ends, resets": (*ALWAYS, "+reward.reward_mode=terminal"),
    "ends": ("+reward.reward_mode=terminal",),
    "histories": HISTORY,
    "histories, resets": (*ALWAYS, *HISTORY),
    "histories, spread": SPREAD,
    "histories, spread, resets": (*ALWAYS, *SPREAD),
}


@pytest.fixture(scope="module", params=CASES)
def runs(request):
    """(RLinf's, ours with all shards in one forward pass, ours with one each), of one case."""
    cfg = config(*MODEL, *CASES[request.param])
    with in_one_process():
        yield (
            collected_by_rlinf(cfg, ROLLOUTS, scorer=Scorer()),
            *(collected_by_us(cfg, ROLLOUTS, together=each, scorer=Scorer()) for each in (True, False)),
        )


def rewards_of(rollouts):
    return [
        torch.cat([piece.payload["rewards"] for piece in pieces], dim=1)
        for stages in rollouts
        for pieces in stages
    ]


def test_rewards_and_bootstrapped_ones_are_rlinfs_bit_by_bit(runs):
    (theirs, _), *ours = runs
    expected = [stage.rewards for stages in theirs for stage in stages]
    for found, _ in ours:
        for mine, yours in zip(rewards_of(found), expected, strict=True):
            assert torch.equal(mine, yours)


def test_statistics_are_rlinfs(runs):
    (_, theirs), *ours = runs
    for _, found in ours:
        for expected, episodes in zip(theirs, found, strict=True):
            assert "reward_model_output" in expected
            assert episodes.keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(episodes[name].sort().values, value.sort().values), name


def test_a_reward_model_changes_what_is_trained_on_and_each_mode_in_its_way():
    with in_one_process():
        found = [
            torch.stack([stage.rewards for stage in collected_by_rlinf(cfg, 1, scorer=scorer)[0][0]])
            for cfg, scorer in (
                (config(*ALWAYS), None),
                *((config(*MODEL, *CASES[case]), Scorer()) for case in CASES if "resets" in case),
            )
        ]
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])


def test_only_ends_of_episodes_are_scored_where_only_they_count():
    scorer = Scorer()
    with in_one_process():
        collected_by_us(config(*MODEL, *CASES["ends"]), ROLLOUTS, together=False, scorer=scorer)
        asked = [bool(shown["dones"].any()) for shown in scorer.asked]
    assert asked
    assert all(asked)


SECTION = OmegaConf.create({"reward_mode": "per_step"})


def step(**changes):
    flags = torch.zeros(2, 3, dtype=torch.bool)
    given = {"obs": {"states": torch.ones(2, 4)}, "rewards": torch.ones(2, 3), "dones": flags}
    return EnvStep(**{**given, "terminations": flags, "truncations": flags, **changes})


def added(answer, *, section=SECTION, **changes):
    async def ask(shown):
        return answer

    made = step(**changes)
    asyncio.run(ShardRewards(section, ask, 2).add(made))
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
