"""Shards that train and shards that evaluate, on real env workers."""

import asyncio
import threading
from threading import current_thread

import pytest
import torch

from rlinf_async.core.failures import ShardFailure
from rlinf_async.hosts.contract import Contract
from rlinf_async.hosts.rlinf.env_shard import ContractedEnv, EvalShard, ShardOutput, TrainShard
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.trajectory import EnvStep
from rlinf_async.loops.evaluation import evaluate_shard
from rlinf_async.ray_runtime.processes.shard_worker import concatenate_metrics
from tests.hosts.policies import ByState
from tests.hosts.rlinf.workers import (
    ACTION,
    CHUNK,
    HORIZON,
    SHARDS,
    Walks,
    config,
    in_one_process,
    with_walks,
)

ENVS = 6
EVALUATES = ("runner.val_check_interval=1", "env.eval.total_num_envs=8")


def moves(size=1.0):
    return {"actions": torch.full((ENVS, CHUNK, ACTION), size)}


def shard_of(*overrides, stage=1):
    cfg = config(f"rollout.pipeline_stage_num={SHARDS}", *overrides)
    with in_one_process():
        worker = with_walks(ShardedEnvWorker(cfg))
    return TrainShard(worker, stage, worker.simulators("train", stage), worker._busy), worker


def rollout(shard, *, decisions=HORIZON):
    async def main():
        outputs = [await shard.start()]
        for _ in range(decisions):
            outputs.append(await shard.step(moves()))
        await shard.finish()
        return outputs

    return asyncio.run(main())


def seen(output):
    return shard_states(output).tolist()


def shard_states(output):
    return getattr(output, "env", output).obs["states"]


def test_a_shard_is_the_environments_of_its_stage():
    shard, worker = shard_of()
    assert (shard.size, shard.horizon) == (ENVS, HORIZON)
    assert [row[0] for row in seen(rollout(shard)[0])] == list(range(6, 12))
    assert [env.rollouts for env in worker.env_list] == [0, 1]


def test_work_of_a_shard_counts_as_that_of_its_stage():
    shard, worker = shard_of(stage=1)
    worker._busy.pop()
    rollout(shard)
    other, own = worker._busy.pop()
    assert (other, own > 0) == (0, True)


def test_environments_that_reset_themselves_go_on_where_the_last_rollout_was_cut():
    shard, _ = shard_of("env.train.auto_reset=true")
    before = None
    for _ in range(3):
        outputs = rollout(shard, decisions=2)
        if before is not None:
            assert seen(outputs[0]) == before
        before = seen(outputs[-1])
        assert not outputs[0].env.dones.any()
        assert outputs[0].env.rewards is None
        assert seen(outputs[0]) != before


def test_what_a_hand_did_last_is_known_to_the_next_rollout():
    shard, _ = shard_of("env.train.auto_reset=true", "++env.train.taken_over=true")
    first, last = (rollout(shard)[index] for index in (0, -1))
    assert first.env.intervene_actions is None
    assert last.env.intervene_flags is not None
    again = rollout(shard)[0].env
    shown = rollout(shard)
    assert torch.equal(again.intervene_actions, last.env.intervene_actions)
    assert again.intervene_flags.shape == (ENVS, CHUNK)
    assert shown[0].env.intervene_flags is not None


def test_environments_that_do_not_reset_themselves_begin_anew():
    shard, worker = shard_of()
    first = rollout(shard)[0]
    worker.env_list[1].is_start = False
    second = rollout(shard)[0]
    assert worker.env_list[1].is_start
    assert [row[1] for row in seen(first)] == [1] * ENVS
    assert [row[1:] for row in seen(second)] == [[2, 0, 0]] * ENVS
    for output in (first, second):
        env = output.env
        for ends in (env.dones, env.terminations, env.truncations):
            assert (ends.shape, ends.dtype) == ((ENVS, CHUNK), torch.bool)
            assert not ends.any()


def test_environments_of_rlinfs_own_are_told_no_tasks(monkeypatch):
    told = []
    monkeypatch.setattr(Walks, "take_on", lambda env, place, number: told.append(place), raising=False)
    shard, _ = shard_of("env.train.env_class=null")
    shard.take_on(5, 7)
    rollout(shard)
    assert told == []


@pytest.mark.parametrize("how", ["take_on", "stand_at"])
def test_environments_of_rlinfs_own_that_stand_at_a_place_are_told_it_before_the_reset(monkeypatch, how):
    told = []
    monkeypatch.setattr(
        Walks,
        "stand_at",
        lambda env, place, number: told.append((place, number, env.rollouts)),
        raising=False,
    )
    shard, _ = shard_of("env.train.env_class=null")
    rollout(shard)
    assert told == []
    getattr(shard, how)(5, 7)
    rollout(shard)
    assert told == [(5, 7, 1)]


def test_environments_of_a_class_of_their_own_are_told_no_place(monkeypatch):
    told = []
    monkeypatch.setattr(Walks, "stand_at", lambda env, place, number: told.append(place), raising=False)
    shard, _ = shard_of()
    shard.stand_at(5, 7)
    rollout(shard)
    assert told == []


def test_nothing_has_ended_where_environments_that_reset_themselves_go_on():
    shard, _ = shard_of("env.train.auto_reset=true")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "_last", ShardOutput(EnvStep(obs={"states": torch.zeros(ENVS, 4)})))
        env = asyncio.run(shard.start()).env
    for ends in (env.dones, env.terminations, env.truncations):
        assert (ends.shape, ends.dtype) == ((ENVS, CHUNK), torch.bool)
        assert not ends.any()


def test_environments_of_an_evaluation_are_used_in_the_thread_that_the_shard_was_given(monkeypatch):
    used = []
    for name in ("reset", "chunk_step"):
        known = getattr(Walks, name)
        monkeypatch.setattr(
            Walks,
            name,
            lambda self, *given, known=known: used.append(current_thread()) or known(self, *given),
        )
    shard, _ = eval_shard()
    used.clear()
    evaluation(shard)
    assert len(used) == 1 + HORIZON
    assert set(used) == {asyncio.run(shard._simulators.build(current_thread))}


def test_latencies_that_rlinf_emulates_are_waited_for_after_every_reset_and_step(monkeypatch):
    shard, worker = shard_of()
    waited = []

    async def wait(env):
        waited.append((worker.env_list.index(env), float(env.age[0])))

    monkeypatch.setattr(Walks, "wait_delay", wait, raising=False)
    rollout(shard, decisions=2)
    assert waited == [(1, 0.0), (1, 1.0), (1, 2.0)]


def test_a_first_observation_may_bring_the_last_one_of_the_episode_before(monkeypatch):
    shard, worker = shard_of()
    final, reset = {"states": torch.full((ENVS, 4), 5.0)}, worker.env_list[1].reset
    monkeypatch.setattr(worker.env_list[1], "reset", lambda: (reset()[0], {"final_observation": final}))
    output = rollout(shard, decisions=0)[0]
    assert torch.equal(output.env.final_obs["states"], final["states"])
    assert torch.equal(shard.observation(output)["final_obs"]["states"], final["states"])


def test_the_policy_is_asked_with_what_rlinfs_rollout_worker_reads():
    shard, _ = shard_of("env.train.auto_reset=true")
    outputs = rollout(shard)
    asked = [shard.observation(output) for output in outputs]
    for output, question in zip(outputs, asked, strict=True):
        assert question.keys() == {"obs", "final_obs"}
        assert torch.equal(question["obs"]["states"], output.env.obs["states"])
        assert (question["final_obs"] is not None) == bool(
            output.env.dones is not None and output.env.dones.any()
        )
    assert any(question["final_obs"] is not None for question in asked)


def test_statistics_come_with_the_output_that_ended_the_episodes():
    outputs = rollout(shard_of()[0])
    assert outputs[0].info == {}
    assert outputs[-1].info["episode_len"].tolist() == [HORIZON * CHUNK] * ENVS


@pytest.mark.parametrize(("saves", "flushed"), [(True, [1]), (False, [])])
def test_videos_are_written_when_a_rollout_ends(saves, flushed, monkeypatch):
    shard, worker = shard_of()
    called = []
    monkeypatch.setattr(Walks, "flush_video", lambda self: called.append(self.name[0] // ENVS), raising=False)
    worker.cfg.env.train.video_cfg.save_video = saves
    rollout(shard, decisions=1)
    assert called == flushed


def test_an_environment_that_makes_no_videos_may_be_asked_to_save_them():
    shard, worker = shard_of()
    worker.cfg.env.train.video_cfg.save_video = True
    rollout(shard, decisions=1)
    assert worker.env_list[1].rollouts == 1


def eval_shard(*overrides, stage=1, env_cls=Walks, skips_ended=False):
    cfg = config(f"rollout.pipeline_stage_num={SHARDS}", *EVALUATES, *overrides)
    with in_one_process():
        worker = ShardedEnvWorker(cfg)
        worker._worker_info = None
        worker.eval_env_list = worker._setup_env_and_wrappers(
            env_cls=env_cls, env_cfg=cfg.env.eval, num_envs_per_stage=worker.eval_num_envs_per_stage
        )
    shard = EvalShard(worker, stage, worker.simulators("eval", stage), skips_ended=skips_ended)
    return shard, worker


def evaluation(shard):
    async def main():
        outputs = [await shard.start()]
        for _ in range(HORIZON):
            outputs.append(await shard.step({"actions": torch.ones(4, CHUNK, ACTION)}))
        await shard.finish()
        return outputs

    return asyncio.run(main())


def test_evaluation_shards_keep_the_statistics_of_each_episode_once():
    shard, worker = eval_shard()
    assert (shard.size, shard.horizon) == (4, HORIZON)
    for rollouts in (1, 2):
        outputs = evaluation(shard)
        assert [row[:2] for row in seen(outputs[0])] == [[name, rollouts] for name in range(4, 8)]
        assert shard.observation(outputs[0])["final_obs"] is None
        assert torch.equal(shard.observation(outputs[0])["obs"]["states"], shard_states(outputs[0]))
        assert sum(len(info["return"]) for info in shard.episodes) == 4 * rollouts
        assert worker.eval_env_list[1].is_start
        assert [env.rollouts for env in worker.eval_env_list] == [0, rollouts]


class Evaluated(Walks):
    """Tells, too, whether an episode has ever come to its end, and counts the decisions that are taken."""

    taken = 0

    def reset(self):
        self.arrived = torch.zeros(len(self.name), dtype=torch.bool)
        return super().reset()

    def chunk_step(self, actions):
        self.taken += len(actions)
        seen, rewards, terminations, truncations, (info,) = super().chunk_step(actions)
        self.arrived |= terminations.any(dim=1)
        info["episode"] |= {"success_once": self.arrived.clone()}
        return seen, rewards, terminations, truncations, [info]


def by_place(states):
    """Actions that move each walker by what it sees."""
    aim = ((states * torch.tensor([3.0, 5.0, 7.0, 8.0])).sum(dim=1) % 16 / 8 - 1)[:, None, None]
    return aim.expand(-1, CHUNK, ACTION)


class Standing(Evaluated):
    """Steps those that it is told, and gives junk of the others."""

    playing = None

    def let_play(self, numbers):
        self.playing = numbers

    def chunk_step(self, actions):
        results = super().chunk_step(actions)
        if self.playing is not None:
            self.taken += len(self.playing) - len(actions)
            stands = torch.ones(len(actions), dtype=torch.bool)
            stands[self.playing] = False
            results[0][0]["states"][stands] = 77.0
        return results


def evaluated(*, skips_ended, env_cls=Evaluated):
    """What four rollouts tell of their episodes, and the decisions that were inferred and taken."""
    shard, worker = eval_shard(env_cls=env_cls, skips_ended=skips_ended)
    policy = ByState(by_place)
    asyncio.run(evaluate_shard(shard=1, env=shard, policy=policy, rollouts=4))
    told = concatenate_metrics(shard.episodes)
    return {name: each.tolist() for name, each in told.items()}, policy.asked, worker.eval_env_list[1].taken


def test_an_evaluation_tells_the_same_of_its_episodes_whether_or_not_anything_follows_their_ends():
    whole, asked, taken = evaluated(skips_ended=False)
    told, fewer_asked, fewer_taken = evaluated(skips_ended=True)
    assert {"return", "episode_len", "success_once"} <= whole.keys()
    assert told == whole
    assert 0 < sum(whole["success_once"]) < len(whole["success_once"]) == 4 * 4
    assert len(set(whole["episode_len"])) > 1
    # Every episode is asked for as long as it lasts, and a rollout lasts as long as its longest.
    lengths = torch.tensor(whole["episode_len"]) / CHUNK
    assert fewer_asked == int(lengths.sum()) < asked == 4 * 4 * HORIZON
    assert fewer_taken <= taken == asked
    told, fewer_asked, fewest_taken = evaluated(skips_ended=True, env_cls=Standing)
    assert (told, fewer_asked) == (whole, int(lengths.sum()))
    assert fewest_taken == fewer_asked


def test_evaluation_that_resets_itself_goes_on_and_counts_every_episode():
    shard, worker = eval_shard("env.eval.auto_reset=true")
    first, second = evaluation(shard), evaluation(shard)
    assert [row[1:] for row in seen(first[0])] == [[1, 0, 0]] * 4
    assert seen(second[0]) == seen(first[-1])
    assert sum(len(info["return"]) for info in shard.episodes) > 8
    assert worker.eval_env_list[1].rollouts == 0


@pytest.mark.parametrize("saves", [True, False])
def test_videos_of_an_evaluation_are_written_when_it_ends(saves, monkeypatch):
    shard, worker = eval_shard()
    called = []
    monkeypatch.setattr(
        Walks, "flush_video", lambda self: called.append(threading.current_thread().name), raising=False
    )
    worker.cfg.env.eval.video_cfg.save_video = saves
    evaluation(shard)
    assert [name.split("_")[0] for name in called] == ["eval-1"] * saves


def restart(shard):
    asyncio.run(shard.restart())


@pytest.mark.parametrize("make", [shard_of, eval_shard])
@pytest.mark.parametrize("fails", ["chunk_step", "update_reset_state_ids"])
def test_what_an_environment_raises_is_a_failure_of_its_shard(make, fails, monkeypatch):
    shard, _ = make()
    monkeypatch.setattr(Walks, fails, lambda *_: 1 / 0)
    with pytest.raises(ShardFailure, match="shard 1") as raised:
        (rollout if make is shard_of else evaluation)(shard)
    assert raised.value.kind == "ZeroDivisionError"


@pytest.mark.parametrize("resets", [True, False])
def test_environments_are_built_anew_in_their_place_with_another_seed(resets, monkeypatch):
    shard, worker = shard_of(f"env.train.auto_reset={str(resets).lower()}", "env.train.seed=5")
    monkeypatch.setattr(Walks, "close", lambda self: closed.append(self) or 1 / 0, raising=False)
    rollout(shard, decisions=2)
    old, closed = list(worker.env_list), []
    for times in (1, 2):
        restart(shard)
        new = worker.env_list[1]
        assert new.cfg.seed == 5 + 7919 * times
        assert torch.equal(new.name, old[1].name)
    assert worker.env_list[0] is old[0]
    assert closed[0] is old[1]
    assert worker.cfg.env.train.seed == 5
    assert worker.stage_num == SHARDS
    assert [row[:2] for row in seen(rollout(shard, decisions=1)[0])] == [[name, 1] for name in range(6, 12)]


def test_environments_that_are_built_anew_have_their_place_among_all_workers():
    class Placed(Walks):
        def __init__(self, cfg, num_envs, seed_offset, total_num_processes, worker_info):
            super().__init__(cfg, num_envs, seed_offset, total_num_processes, worker_info)
            self.told = seed_offset, total_num_processes

    with in_one_process():
        worker = ShardedEnvWorker(config(f"rollout.pipeline_stage_num={SHARDS}"))
        worker._rank, worker._world_size = 2, 3
        with_walks(worker, Placed)
    before = [env.told for env in worker.env_list]
    assert before == [(2 * SHARDS + stage, 3 * SHARDS) for stage in range(SHARDS)]
    for stage in range(SHARDS):
        worker.rebuild("train", stage)
    assert [env.told for env in worker.env_list] == before


def test_the_last_intervention_ends_with_the_environments_in_which_it_was(monkeypatch):
    shard, _ = shard_of("env.train.auto_reset=true", "++env.train.taken_over=true")
    assert rollout(shard)[-1].env.intervene_flags is not None
    restart(shard)
    assert rollout(shard, decisions=0)[0].env.intervene_flags is None


def test_environments_that_are_built_anew_are_wrapped_again(monkeypatch):
    wrapped = []

    class Recorded(Walks):
        def __init__(self, env, cfg):
            vars(self).update(vars(env))
            wrapped.append(env)

    monkeypatch.setattr("rlinf.workers.env.env_worker.RecordVideo", Recorded)
    shard, worker = shard_of("env.train.video_cfg.save_video=true")
    restart(shard)
    assert len(wrapped) == SHARDS + 1
    assert isinstance(worker.env_list[1], Recorded)


@pytest.mark.parametrize("complete", [0, 1])
def test_evaluation_environments_are_built_anew_with_their_seed_and_forget_the_rollout_that_failed(complete):
    shard, worker = eval_shard("env.eval.seed=5")
    for _ in range(complete):
        evaluation(shard)

    async def fails():
        await shard.start()
        for _ in range(HORIZON):
            await shard.step({"actions": torch.ones(4, CHUNK, ACTION)})

    asyncio.run(fails())
    assert sum(len(info["return"]) for info in shard.episodes) == 4 * (complete + 1)
    restart(shard)
    assert sum(len(info["return"]) for info in shard.episodes) == 4 * complete
    assert worker.eval_env_list[1].cfg.seed == 5
    assert evaluation(shard)


def test_evaluation_that_resets_itself_begins_anew_with_environments_that_were_built_anew():
    shard, _ = eval_shard("env.eval.auto_reset=true")
    evaluation(shard)
    restart(shard)
    assert [row[1:] for row in seen(evaluation(shard)[0])] == [[1, 0, 0]] * 4


def test_simulators_that_hang_are_ended_by_their_environments(monkeypatch):
    shard, worker = shard_of()
    reasons = []
    monkeypatch.setattr(
        Walks, "abort", lambda self, reason: reasons.append((self, reason)) or True, raising=False
    )
    assert shard._simulators._abort("no answer")
    assert reasons == [(worker.env_list[1], "no answer")]


@pytest.mark.parametrize("resets", [True, False])
def test_environments_that_are_renewed_do_not_depend_on_what_was_before(resets):
    """Of which kind they are, they stand where those of a run do that goes on from there."""
    shards = [shard_of(f"env.train.auto_reset={str(resets).lower()}", "env.train.seed=5") for _ in range(2)]
    (one, worker), (other, _) = shards
    rollout(one)
    rollout(one, decisions=2)
    restart(one)
    before = worker.env_list[1]
    for shard in (one, other):
        asyncio.run(shard.renew(4))
    assert worker.env_list[1] is not before
    assert worker.env_list[1].cfg.seed == 5 + 7919 * 4
    first, second = (rollout(shard) for shard in (one, other))
    assert [seen(output) for output in first] == [seen(output) for output in second]
    assert worker.cfg.env.train.seed == 5


def test_the_last_reward_of_an_episode_is_what_the_simulator_gave_though_rlinf_writes_over_its_own():
    """RLinf's `ManiskillEnv.step` gives 0 there: it keeps the tensor that it returns, and clears it."""
    pytest.importorskip("mani_skill", reason="ManiSkill is not installed")
    from tests.hosts.rlinf.resetting import maniskill

    env = maniskill()
    (shown,), rewards, terminations, _, (info,) = ContractedEnv(env, Contract(0, 2), 2).chunk_step(
        torch.zeros(2, 2, 1)
    )
    env.prev_step_reward.fill_(-1)
    env.env.elapsed_steps.fill_(-1)
    assert rewards.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert terminations[:, -1].tolist() == [True, False]
    assert info["final_info"]["episode"]["return"].tolist() == [3.0, 3.0]
    assert info["final_info"]["episode"]["episode_len"].tolist() == [2, 2]
    assert shown["states"].shape == (2, 3)
