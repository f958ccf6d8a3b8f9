"""Shards that train and shards that evaluate, on small environments."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.failures import ShardFailure
from rlinf_async.core.row_stack import stacked
from rlinf_async.core.tensors import concatenate
from rlinf_async.hosts.workers.eval_shard import EvalShard
from rlinf_async.hosts.workers.shard import Stage, TrainShard
from rlinf_async.loops.evaluation import evaluate_shard
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.wire.memory import MemoryPool, Pickled, Reuse
from rlinf_async.wire.shown_memory import RolloutMemory
from tests.hosts.policies import ByState
from tests.hosts.workers.given import ACTION, CHUNK, Walks, moves

SIZE = 3


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def section(env):
    return {"auto_reset": env.auto_reset, "ignore_terminations": env.ignore_terminations}


def stage(env, thread, rebuild=None):
    simulators = SimulatorThread(0, thread, AdvancedConfig())
    return Stage(env=env, section=section(env), size=SIZE, horizon=4, simulators=simulators, rebuild=rebuild)


def train_shard(env, thread, rebuild=None):
    return TrainShard(stage(env, thread, rebuild), busy=BusyMeter(), number=0)


def eval_shard(env, thread, rebuild=None):
    return EvalShard(stage(env, thread, rebuild))


def rollout(shard, *, decisions=4, length=0.5, actions=None):
    answer = moves(SIZE, length) if actions is None else {"actions": actions}

    async def main():
        outputs = [await shard.start()]
        for _ in range(decisions):
            outputs.append(await shard.step(answer))
        await shard.finish()
        return outputs

    return asyncio.run(main())


class Filmed(Walks):
    """Walks whose pictures, larger than a row that is copied anew, show where each environment is."""

    def _seen(self):
        pictures = (10 * self.where).to(torch.uint8)[:, None, None].expand(-1, 64, 64)
        return {**super()._seen(), "main_images": pictures.numpy()}


@pytest.mark.parametrize("auto_reset", [False, True])
def test_the_pictures_of_a_rollout_are_copied_once_into_its_memory(thread, auto_reset):
    shard = train_shard(Filmed(SIZE, most=20, auto_reset=auto_reset), thread)
    shard.keep_in(RolloutMemory(MemoryPool(Reuse.UNMAPPED), rows=5))
    plain = train_shard(Filmed(SIZE, most=20, auto_reset=auto_reset), thread)
    for number in range(4):
        found, expected = (
            stacked([output.observation for output in rollout(each, length=0.1)]) for each in (shard, plain)
        )
        pictures = expected["main_images"]
        assert torch.equal(torch.as_tensor(found["states"]), torch.as_tensor(expected["states"]))
        if number:
            assert torch.equal(found["main_images"], torch.stack(pictures.rows))
            assert Pickled(found["main_images"].numpy()).rest == []


class Scripted:
    """Ends and rewards [decisions, environments, steps] as they are given; successes come with each end."""

    def __init__(self, rewards, terminations, truncations, *, auto_reset=False):
        self.rewards, self.terminations, self.truncations = rewards, terminations, truncations
        self.auto_reset, self.ignore_terminations = auto_reset, False

    def reset(self):
        self.decisions, self.succeeded = 0, torch.zeros(self.rewards.shape[1], dtype=torch.bool)
        return self.seen(), {}

    def update_reset_state_ids(self):
        pass

    def seen(self):
        return {"states": torch.zeros(self.rewards.shape[1], 1)}

    def chunk_step(self, actions):
        now, self.decisions = self.decisions, self.decisions + 1
        ends = self.terminations[now], self.truncations[now]
        self.succeeded |= ends[0].any(dim=1)
        info = {"episode": {"success": self.succeeded.clone(), "decision": torch.full((SIZE,), now)}}
        if self.auto_reset and (ends[0] | ends[1]).any():
            info = {"final_observation": self.seen(), "final_info": info}
        return self.seen(), self.rewards[now], *ends, info


def one_by_one(env, resets):
    """What the episodes of `env` are, step by step: the reward of each decision, whether an episode had ended
    by it, whether a cut was that end, and how often an episode ended in it."""
    decisions, size, steps = env.rewards.shape
    rewards, ends = torch.zeros(decisions, size), torch.zeros(decisions, size)
    ended, cut = torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool)
    told = []
    for decision in range(decisions):
        for i in range(size):
            over = bool(ended[i]) and not resets
            for step in range(steps):
                if not over:
                    rewards[decision, i] += env.rewards[decision, i, step]
                    at_goal, late = env.terminations[decision, i, step], env.truncations[decision, i, step]
                    if over := bool(at_goal or late):
                        ends[decision, i] = 1
                        cut[i] = not at_goal
            if resets:
                ended[i], cut[i] = bool(ends[decision, i]), bool(ends[decision, i]) and bool(cut[i])
            else:
                ended[i] |= bool(ends[decision, i])
        told.append((ended.clone(), cut.clone()))
    return rewards, told, ends


@pytest.mark.parametrize("resets", [False, True])
def test_an_episode_ends_with_the_first_end_at_any_step_of_a_decision(thread, resets):
    shape, actions = (4, SIZE, 3), torch.zeros(SIZE, 3, 1)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        terminations, truncations = (torch.rand(shape, generator=draw) < 0.12 for _ in range(2))
        env = Scripted(torch.rand(shape, generator=draw), terminations, truncations, auto_reset=resets)
        rewards, told, ends = one_by_one(env, resets)
        first, *outputs = rollout(train_shard(env, thread), actions=actions)
        assert not torch.cat([first.ended, first.truncated, first.rewards.bool()]).any()
        before = first.ended
        for output, reward, (ended, cut) in zip(outputs, rewards, told, strict=True):
            assert torch.equal(output.ended, ended), seed
            assert torch.equal(output.truncated, cut), seed
            # What comes after the end of an earlier decision is masked by `ended`, where nothing resets.
            counted = torch.ones_like(before) if resets else ~before
            assert torch.allclose(output.rewards[counted], reward[counted]), seed
            before = output.ended
        evaluation = eval_shard(env, thread)
        rollout(evaluation, actions=actions)
        counted_in = torch.cat([each["decision"] for each in evaluation.episodes] or [torch.tensor([])])
        assert sorted(counted_in.tolist()) == [int(at) for at in ends.nonzero()[:, 0]], seed


@pytest.mark.parametrize("resets", [False, True])
def test_statistics_of_an_end_in_the_middle_of_a_decision_are_told(thread, resets):
    ends = torch.tensor([[[True, False], [False, False], [False, True]]])
    env = Scripted(torch.zeros(ends.shape), ends, torch.zeros_like(ends), auto_reset=resets)
    (_, output) = rollout(train_shard(env, thread), decisions=1)
    told = output.episodes["success"].tolist()
    assert told == ([True, True] if resets else [True, False, True])


def test_every_rollout_begins_with_a_reset_where_nothing_resets_by_itself(thread):
    env = Walks(SIZE, most=4)
    shard = train_shard(env, thread)
    first, second = rollout(shard), rollout(shard)
    assert (env.resets, env.rewinds, env.is_start) == (2, 2, True)
    assert torch.equal(first[0].observation["states"], second[0].observation["states"])
    assert not second[0].ended.any()


def test_an_episode_that_resets_itself_goes_on_in_the_next_rollout(thread):
    shard = train_shard(Walks(SIZE, most=9, auto_reset=True), thread)
    first = rollout(shard, decisions=2)
    second = rollout(shard, decisions=1)
    assert torch.equal(first[-1].observation["states"], second[0].observation["states"])
    # The third environment arrives with its third decision, the first of the second rollout.
    assert second[1].ended.tolist() == [True, False, True]


def test_the_end_of_an_episode_is_shown_beside_the_beginning_of_the_next(thread):
    outputs = rollout(train_shard(Walks(SIZE, most=9, auto_reset=True), thread), decisions=1)
    assert outputs[1].final_observation["states"].flatten().tolist() == [1.0, 1.0, 1.0]
    assert outputs[1].observation["states"].flatten().tolist() == [0.0, 1.0, 1.0]
    assert outputs[1].episodes["return"].tolist() == [1.0]  # of the one that has ended


def test_where_ends_are_ignored_statistics_come_with_the_cut(thread):
    outputs = rollout(train_shard(Walks(SIZE, most=2, ignore=True), thread), decisions=2)
    assert [bool(output.episodes) for output in outputs] == [False, False, True]


def test_inference_is_shown_final_observations_only_where_there_are_some(thread):
    shard = train_shard(Walks(SIZE, most=9, auto_reset=True), thread)
    outputs = rollout(shard, decisions=1)
    assert shard.observation(outputs[0])["final_obs"] is None
    assert shard.observation(outputs[1])["final_obs"] is outputs[1].final_observation


class Evaluated(Walks):
    """Tells of its episodes what RLinf's do, and counts the decisions that its environments take."""

    taken = 0

    def chunk_step(self, actions):
        self.taken += len(actions)
        seen, rewards, terminations, truncations, (info,) = super().chunk_step(actions)
        info["episode"] |= {"success_once": self.where >= self.goals, "episode_len": CHUNK * self.decisions}
        return seen, rewards, terminations, truncations, [info]


def by_place(states):
    """Actions that move each environment by where it stands."""
    return (0.3 + states / 4)[:, :, None].expand(-1, CHUNK, ACTION)


class Standing(Evaluated):
    """Steps those that it is told; the others give again what they gave, and junk for rewards and ends."""

    playing = None

    def let_play(self, numbers):
        self.playing = numbers

    def chunk_step(self, actions):
        if self.playing is None:
            return super().chunk_step(actions)
        where, decisions, taken = self.where, self.decisions, self.taken
        _, rewards, terminations, truncations, info = super().chunk_step(actions)
        stands = torch.ones(SIZE, dtype=torch.bool)
        stands[self.playing] = False
        self.where, self.decisions = (
            torch.where(stands, before, now)
            for before, now in ((where, self.where), (decisions, self.decisions))
        )
        self.taken = taken + len(self.playing)
        junk = torch.where(stands[:, None], 77.0, rewards)
        return [self._seen()], junk, terminations | stands[:, None], truncations, info


def evaluated(thread, *, most, skips_ended, cls=Evaluated):
    """What two rollouts tell of their episodes, and the decisions that were inferred and taken."""
    env, policy = cls(SIZE, most=most), ByState(by_place)
    shard = EvalShard(stage(env, thread), skips_ended=skips_ended)
    asyncio.run(evaluate_shard(shard=0, env=shard, policy=policy, rollouts=2))
    told = concatenate(shard.episodes)
    return {name: values.tolist() for name, values in told.items()}, policy.asked, env.taken


def test_an_evaluation_tells_the_same_of_its_episodes_whether_or_not_anything_follows_their_ends(thread):
    whole, asked, taken = evaluated(thread, most=3, skips_ended=False)
    told, fewer_asked, fewer_taken = evaluated(thread, most=3, skips_ended=True)
    assert told == whole
    # One arrives with its second decision, one with the third, after which the last is cut: of four.
    assert whole["success_once"] == [True, True, False] * 2
    assert whole["episode_len"] == [4.0, 6.0, 6.0] * 2
    assert (asked, taken) == (24, 24)
    assert (fewer_asked, fewer_taken) == (2 * (3 + 3 + 2), 2 * 3 * SIZE)
    told, fewer_asked, fewest_taken = evaluated(thread, most=3, skips_ended=True, cls=Standing)
    assert told == whole
    assert fewest_taken == fewer_asked == 2 * (3 + 3 + 2)


def played(thread, cls, *, skips_ended):
    """The outputs of a rollout for training, and the decisions that were taken."""
    env = cls(SIZE, most=4)
    shard = TrainShard(stage(env, thread), busy=BusyMeter(), number=0, skips_ended=skips_ended)

    async def main():
        outputs = [await shard.start()]
        while waiting := shard.waiting(outputs[-1]):
            if len(outputs) > shard.horizon:
                break
            outputs.append(await shard.step(moves(waiting, 0.5)))
        await shard.finish()
        return outputs

    return asyncio.run(main()), env.taken


@pytest.mark.parametrize("cls", [Evaluated, Standing])
def test_simulators_that_can_be_left_alone_are_once_their_episodes_have_ended(thread, cls):
    whole, taken = played(thread, cls, skips_ended=False)
    left, fewer = played(thread, cls, skips_ended=True)
    assert (len(whole), len(left)) == (5, 4)
    # Environment i arrives with its decision number i + 1.
    assert (taken, fewer) == (4 * SIZE, 1 + 2 + 3 if cls is Standing else 3 * SIZE)
    assert [None if output.playing is None else output.playing.others_stand for output in left] == [
        *[None, *[cls is Standing] * 3]
    ]
    over = torch.zeros(SIZE, dtype=torch.bool)
    for one, other in zip(whole, left, strict=False):
        assert torch.equal(one.ended, other.ended)
        for field in ("rewards", "truncated"):
            assert torch.equal(getattr(one, field)[~over], getattr(other, field)[~over])
        assert torch.equal(one.observation["states"][~over], other.observation["states"][~over])
        over = one.ended
    for name, values in whole[3].episodes.items():
        ended_at = torch.tensor([1, 2, 3])
        expected = torch.stack([whole[at].episodes[name][i] for i, at in enumerate(ended_at.tolist())])
        assert torch.equal(left[-1].episodes[name], expected), name
        assert values.shape == expected.shape


@pytest.mark.parametrize("make", [train_shard, eval_shard])
def test_what_an_environment_raises_is_a_failure_of_its_shard(make, thread, monkeypatch):
    shard = make(Walks(SIZE, most=4), thread)
    for name, calls in (("chunk_step", {"decisions": 1}), ("update_reset_state_ids", {"decisions": 0})):
        with monkeypatch.context() as patch:
            patch.setattr(Walks, name, lambda *_: 1 / 0)
            with pytest.raises(ShardFailure) as raised:
                rollout(shard, **calls)
            assert raised.value.kind == "ZeroDivisionError"


def test_environments_that_were_built_anew_begin_with_a_reset(thread):
    first, second = (Walks(SIZE, most=9, auto_reset=True) for _ in range(2))
    shard = train_shard(first, thread, rebuild=lambda _: second)
    rollout(shard, decisions=2)
    resets = first.resets
    asyncio.run(shard.restart())
    outputs = rollout(shard, decisions=0)
    assert (first.resets, second.resets) == (resets, 1)
    assert outputs[0].observation["states"].flatten().tolist() == [0.0, 0.0, 0.0]


def test_what_is_renewed_is_told_the_step_and_begins_with_a_reset(thread):
    first, second = (Walks(SIZE, most=9, auto_reset=True) for _ in range(2))
    shard = train_shard(first, thread, rebuild={4: second}.__getitem__)
    rollout(shard, decisions=2)
    asyncio.run(shard.renew(4))
    assert rollout(shard, decisions=0)[0].observation["states"].flatten().tolist() == [0.0, 0.0, 0.0]
    assert second.resets == 1


@pytest.mark.parametrize("resets", [True, False])
def test_the_episodes_of_an_evaluation_that_has_failed_are_forgotten(thread, resets):
    first, second = (Walks(SIZE, most=4, auto_reset=resets) for _ in range(2))
    shard = eval_shard(first, thread, rebuild=lambda _: second)
    rollout(shard)
    complete = list(shard.episodes)

    async def fails():
        await shard.start()
        await shard.step(moves(SIZE, 4.0))

    asyncio.run(fails())
    assert len(shard.episodes) > len(complete)
    asyncio.run(shard.restart())
    assert len(shard.episodes) == len(complete)
    rollout(shard)
    assert second.resets >= 1
