"""Rollouts of our env shards against those of RLinf's env worker, on the same environments and actions."""

import asyncio

import pytest
import torch

from rlinf_async.hosts.rlinf import rewards as rewards_module
from rlinf_async.hosts.rlinf.rewards import RewardQueue
from rlinf_async.hosts.rlinf.trajectory import ShardRecorder
from tests.hosts.rlinf.workers import (
    HORIZON,
    SHARDS,
    Scorer,
    Walks,
    collected_by_rlinf,
    collected_by_us,
    config,
    in_one_process,
)

ROLLOUTS, STAGE = 3, 6
FIELDS = ("rewards", "dones", "terminations", "truncations", "prev_values", "prev_logprobs", "actions")
RESETS = ("env.train.auto_reset=true",)
ALWAYS = (*RESETS, "algorithm.bootstrap_type=always")
MODEL = (
    "+cluster.component_placement.reward=0-0",
    "++reward={use_reward_model: true, group_name: RewardGroup, reward_weight: 0.5, env_reward_weight: 0.25}",
)
"""Rewards of a reward model, beside those of the environments."""
ENDS = (*MODEL, "+reward.reward_mode=terminal")
HISTORY = (
    *MODEL,
    "+reward.reward_mode=history_buffer",
    "+reward.model={history_buffers: {window: {history_size: 3, min_history_size: 2, input_interval: 1,"
    " history_keys: [states], input_on_done: false}, last: {history_size: 2, min_history_size: 1,"
    " input_interval: 1, history_keys: [states]}}}",
)
SPREAD = (*HISTORY, "+reward.history_reward_assign=true")
CASES = {
    "resets": RESETS,
    "resets, bootstrapped at every end": ALWAYS,
    "resets, taken over": (*RESETS, "++env.train.taken_over=true"),
    "resets, ends ignored": (*RESETS, "env.train.ignore_terminations=true"),
    "waits": (),
    "waits, ends ignored": ("env.train.ignore_terminations=true",),
    "waits, taken over": ("++env.train.taken_over=true",),
    "model, each step": MODEL,
    "model, each step, resets": (*MODEL, *RESETS),
    "model, ends": ENDS,
    "model, ends, resets": (*ENDS, *ALWAYS),
    "model, histories": HISTORY,
    "model, histories, resets": (*HISTORY, *ALWAYS),
    "model, histories, spread": SPREAD,
    "model, histories, spread, resets": (*SPREAD, *ALWAYS),
}


def scorer_of(case):
    return Scorer() if case.startswith("model") else None


@pytest.fixture(scope="module", params=CASES)
def runs(request):
    """(RLinf's, ours with all shards in one forward pass, ours with one each), of one case."""
    cfg, scorer = config(*CASES[request.param]), scorer_of(request.param)
    with in_one_process():
        yield (
            collected_by_rlinf(cfg, ROLLOUTS, scorer=scorer),
            *(collected_by_us(cfg, ROLLOUTS, together=each, scorer=scorer) for each in (True, False)),
        )


def test_every_field_of_every_rollout_is_rlinfs_bit_by_bit(runs):
    (theirs, _), *ours = runs
    for found, _ in ours:
        for expected_rollout, rollout in zip(theirs, found, strict=True):
            for expected, pieces in zip(expected_rollout, rollout, strict=True):
                for name in FIELDS:
                    joined = torch.cat([piece.payload[name] for piece in pieces], dim=1)
                    assert torch.equal(joined, getattr(expected, name)), name
                inputs = [piece.payload["forward_inputs"] for piece in pieces]
                assert inputs[0].keys() == expected.forward_inputs.keys()
                for name, value in expected.forward_inputs.items():
                    assert torch.equal(torch.cat([each[name] for each in inputs], dim=1), value), name


def test_episode_statistics_are_rlinfs(runs, request):
    has_model = request.node.callspec.params["runs"].startswith("model")
    # RLinf notes them decision by decision, we shard by shard.
    (_, theirs), *ours = runs
    for _, found in ours:
        for expected, episodes in zip(theirs, found, strict=True):
            assert episodes.keys() == expected.keys()
            assert ("reward_model_output" in expected) == has_model
            for name, value in expected.items():
                assert torch.equal(episodes[name].sort().values, value.sort().values), name


def test_the_comparison_has_something_to_compare():
    cfg = config(*CASES["resets"])
    with in_one_process():
        rollouts, episodes = collected_by_rlinf(cfg, ROLLOUTS)
        always, _ = collected_by_rlinf(config(*CASES["resets, bootstrapped at every end"]), ROLLOUTS)
    stages = [stage for rollout in rollouts for stage in rollout]
    others = [stage for rollout in always for stage in rollout]
    assert not all(torch.equal(one.rewards, other.rewards) for one, other in zip(stages, others, strict=True))
    ends = torch.stack([stage.truncations[1:, :, -1] for stage in stages])
    assert 5 < ends.sum() < ends.numel() / 2
    # Rollouts are cut in the middle of episodes, which the next one carries on.
    begins = torch.stack([stage.forward_inputs["states"][0, :, 2] for stage in stages])
    assert (begins > 0).any()
    assert all(len(found["return"]) > 12 for found in episodes)


def test_a_reward_model_changes_what_is_trained_on_and_each_mode_in_its_way():
    with in_one_process():
        found = [
            torch.stack([stage.rewards for stage in collected_by_rlinf(cfg, 1, scorer=scorer)[0][0]])
            for cfg, scorer in (
                (config(*ALWAYS), None),
                *((config(*CASES[case]), Scorer()) for case in CASES if "model" in case and "resets" in case),
            )
        ]
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])


def test_only_ends_of_episodes_are_scored_where_only_they_count():
    scorer = Scorer()
    with in_one_process():
        collected_by_us(config(*ENDS), ROLLOUTS, together=False, scorer=scorer)
        asked = [bool(shown["dones"].any()) for shown in scorer.asked]
    assert asked
    assert all(asked)


class LateScorer(Scorer):
    """Answers once a rollout has been played to its end."""

    def __init__(self):
        super().__init__()
        self.played = asyncio.Event()

    async def remote(self, shown):
        await self.played.wait()
        return await super().remote(shown)


@pytest.mark.parametrize("mode", [MODEL, ENDS, SPREAD], ids=["each step", "ends", "histories, spread"])
def test_rewards_that_come_after_the_last_decision_are_rlinfs(mode, monkeypatch):
    scorer, complete = LateScorer(), ShardRecorder.complete

    def played(self, output):
        scorer.played.set()
        return complete(self, output)

    def large(score, *, most_environments):
        assert most_environments == STAGE  # RLinf's own loop has two stages here
        return RewardQueue(score, most_environments=9 * STAGE)

    monkeypatch.setattr(ShardRecorder, "complete", played)
    monkeypatch.setattr(rewards_module, "RewardQueue", large)
    cfg = config(*mode, *RESETS)
    with in_one_process():
        theirs, _ = collected_by_rlinf(cfg, 1, scorer=Scorer())
        # Without level 2 a shard would wait for the first rewards until its deadline.
        ours, _ = collected_by_us(cfg, 1, together=False, scorer=scorer)
    for expected, pieces in zip(theirs[0], ours[0], strict=True):
        rewards = torch.cat([piece.payload["rewards"] for piece in pieces], dim=1)
        assert torch.equal(rewards, expected.rewards)
    shared = max(len(shown["dones"]) for shown in scorer.asked) > STAGE
    assert shared == (mode is not SPREAD)


class Noting(Scorer):
    """Notes when the environments of a shard have stepped, and when their rewards have come, slowly."""

    def __init__(self):
        super().__init__()
        self.events = {stage: [] for stage in range(SHARDS)}

    def walks(self, *args, **options):
        scorer = self

        class Noted(Walks):
            def chunk_step(self, actions):
                scorer.events[int(self.name[0]) // STAGE].append("step")
                return super().chunk_step(actions)

        return Noted(*args, **options)

    async def remote(self, shown):
        for _ in range(20):
            await asyncio.sleep(0)
        for stage in {int(name) // STAGE for name in shown["states"][:, 0]}:
            self.events[stage].append("rewards")
        return self.score(shown)


def test_without_level_2_a_shard_waits_for_the_rewards_of_a_step_before_the_next_step():
    scorer = Noting()
    with in_one_process():
        cfg = config(*MODEL, "async.mode=train", f"rollout.pipeline_stage_num={SHARDS}")
        collected_by_us(cfg, 1, together=False, env_cls=scorer.walks, scorer=scorer)
    assert scorer.events == {stage: ["step", "rewards"] * HORIZON for stage in range(SHARDS)}
