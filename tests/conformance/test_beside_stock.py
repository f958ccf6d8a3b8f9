"""Strange environments whose rollouts RLinf's own env worker collects: ours collects the same, bit by bit."""

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

import torch

from tests.hosts.rlinf.workers import Walks, collected_by_rlinf, collected_by_us, config, in_one_process

ROLLOUTS = 3
FIELDS = ("rewards", "dones", "terminations", "truncations", "prev_values", "prev_logprobs", "actions")
RESETS = "env.train.auto_reset=true"


class WritesOverWhatWasShown(Walks):
    """Shows observations and rewards in the arrays that it has shown them in before."""

    def _seen(self):
        seen, buffers = super()._seen(), vars(self).setdefault("buffers", {})
        # The last of an episode and the first of the next are shown at once.
        place = buffers.setdefault(bool(self.age.any()), seen)
        for name in ("states", "main_images"):
            place[name][...] = seen[name]
        return dict(place)

    def chunk_step(self, actions):
        observations, rewards, *rest = super().chunk_step(actions)
        vars(self).setdefault("rewarded", rewards)[...] = rewards
        return observations, self.rewarded, *rest


class Rewarded(Walks):
    """Rewards of another type."""

    dtype = torch.float64

    def chunk_step(self, actions):
        observations, rewards, *rest = super().chunk_step(actions)
        return observations, rewards.to(self.dtype), *rest


class RewardedInHalves(Rewarded):
    dtype = torch.bfloat16


class FlaggedByNumbers(Walks):
    """Ends that are 0 or 1."""

    def chunk_step(self, actions):
        observations, rewards, terminations, truncations, infos = super().chunk_step(actions)
        return observations, rewards, terminations.float(), truncations.to(torch.uint8), infos


class NotContiguous(Walks):
    """Every other element of a larger tensor."""

    def _seen(self):
        return {
            name: torch.stack([value, value], dim=-1)[..., 0] if isinstance(value, torch.Tensor) else value
            for name, value in super()._seen().items()
        }


class ShowsMoreInOneShard(Walks):
    """The second shard has a camera on its wrist."""

    def _seen(self):
        seen = super()._seen()
        return {**seen, "wrist_images": seen["main_images"].clone()} if self.name[0] else seen


class ShowsLargerPicturesInOneShard(Walks):
    """Those of the second shard are of another size."""

    def _seen(self):
        seen = super()._seen()
        return {**seen, "main_images": seen["main_images"].repeat(1, 2, 2)} if self.name[0] else seen


class ShowsFewerFieldsAtTheEnd(Walks):
    """The last observation of an episode has no instruction."""

    def chunk_step(self, actions):
        observations, *rest, infos = super().chunk_step(actions)
        if "final_observation" in infos[0]:
            del infos[0]["final_observation"]["task_descriptions"]
        return observations, *rest, infos


class SaysAllOfADecision(Walks):
    """Shows and tells every step of a decision, and wears what nobody looks at."""

    def chunk_step(self, actions):
        observations, *rest, infos = super().chunk_step(actions)
        early = {"states": torch.full_like(observations[0]["states"], float("nan"))}
        return (early, {**observations[0], "unread": torch.tensor(float("nan"))}), *rest, ({}, infos[0])


CASES = [
    (WritesOverWhatWasShown, ()),
    (WritesOverWhatWasShown, (RESETS,)),
    (Rewarded, ()),
    (Rewarded, (RESETS,)),
    (RewardedInHalves, (RESETS,)),
    (FlaggedByNumbers, ()),
    (NotContiguous, (RESETS,)),
    (ShowsMoreInOneShard, ()),
    (ShowsMoreInOneShard, (RESETS,)),
    (ShowsLargerPicturesInOneShard, ()),
    (ShowsFewerFieldsAtTheEnd, (RESETS,)),
    (SaysAllOfADecision, ()),
]


@pytest.mark.parametrize(("env_cls", "overrides"), CASES)
def test_a_rollout_is_rlinfs_whether_shards_share_forward_passes_or_not(env_cls, overrides):
    cfg = config(*overrides)
    with in_one_process():
        theirs = collected_by_rlinf(cfg, ROLLOUTS, env_cls)
        for together in (True, False):
            same(theirs, collected_by_us(cfg, ROLLOUTS, together=together, env_cls=env_cls))


def same(theirs, ours):
    (trajectories, their_episodes), (collected, our_episodes) = theirs, ours
    for expected_rollout, rollout in zip(trajectories, collected, strict=True):
        for expected, pieces in zip(expected_rollout, rollout, strict=True):
            for name in FIELDS:
                joined = torch.cat([piece.payload[name] for piece in pieces], dim=1)
                value = getattr(expected, name)
                assert torch.equal(joined.to(value), value), name
            for name, value in expected.forward_inputs.items():
                found = torch.cat([piece.payload["forward_inputs"][name] for piece in pieces], dim=1)
                assert torch.equal(found, value), name
    for expected, episodes in zip(their_episodes, our_episodes, strict=True):
        assert episodes.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(episodes[name].sort().values, value.sort().values), name
