"""Rollouts of our env shards against those of RLinf's env worker, on the same environments and actions."""

import pytest
import torch

from tests.hosts.rlinf.workers import collected_by_rlinf, collected_by_us, config, in_one_process

ROLLOUTS = 3
FIELDS = ("rewards", "dones", "terminations", "truncations", "prev_values", "prev_logprobs", "actions")
RESETS = ("env.train.auto_reset=true",)
CASES = {
    "resets": RESETS,
    "resets, bootstrapped at every end": (*RESETS, "algorithm.bootstrap_type=always"),
    "resets, taken over": (*RESETS, "++env.train.taken_over=true"),
    "resets, ends ignored": (*RESETS, "env.train.ignore_terminations=true"),
    "waits": (),
    "waits, ends ignored": ("env.train.ignore_terminations=true",),
    "waits, taken over": ("++env.train.taken_over=true",),
}


@pytest.fixture(scope="module", params=CASES)
def runs(request):
    """(RLinf's, ours with all shards in one forward pass, ours with one each), of one case."""
    cfg = config(*CASES[request.param])
    with in_one_process():
        yield (
            collected_by_rlinf(cfg, ROLLOUTS),
            *(collected_by_us(cfg, ROLLOUTS, together=together) for together in (True, False)),
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


def test_episode_statistics_are_rlinfs(runs):
    # RLinf notes them decision by decision, we shard by shard.
    (_, theirs), *ours = runs
    for _, found in ours:
        for expected, episodes in zip(theirs, found, strict=True):
            assert episodes.keys() == expected.keys()
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
