import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from rlinf.utils.runner_utils import check_progress

from rlinf_async.hosts.rlinf.config import read_fit, resolve, uses_us, write_back
from rlinf_async.hosts.rlinf.presence import config_reasons
from rlinf_async.hosts.rlinf.reasons import interval_reasons
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.hosts.rlinf.given import BASE, ONE_EACH, config


def made(changes=None):
    return OmegaConf.create(config(changes))


def test_the_async_block_is_read_with_its_references_resolved():
    cfg = made({"async": {"mode": "train", "train": {"max_staleness": "${actor.seed}"}}})
    assert read_fit(cfg).asynchrony.max_staleness == 3


def test_a_config_without_the_block_is_off():
    cfg = made()
    del cfg["async"]
    assert not read_fit(cfg).asynchrony.active


@pytest.mark.parametrize("text", ["async: off", "async: {mode: off}", "async: {}", "async: "])
def test_every_way_to_say_off_is_off_or_an_error_that_says_how(text):
    cfg = OmegaConf.create(text)
    if text == "async: off":
        with pytest.raises(ValueError, match=r"async=false must be a block; use async\.mode=off"):
            read_fit(cfg)
    else:
        assert not read_fit(cfg).asynchrony.active


def test_an_override_on_the_command_line_beats_the_preset():
    cfg = made()
    cfg.merge_with_dotlist(["async.streamer.enabled=false"])
    assert read_fit(cfg).asynchrony.levels == {"train": True, "rollout": True, "streamer": False}


def test_workers_load_the_package_when_a_level_is_on_or_something_of_ours_is_used():
    assert uses_us(made())
    off = {"async": {"mode": "off"}}
    assert not uses_us(made(off))
    assert uses_us(made({**off, "env.train.env_class": "metaworld_task"}))
    assert uses_us(made({**off, "env.eval.env_class": "metaworld_task"}))


def test_sizes_are_worked_out_from_the_placement_before_the_cluster_is_up():
    placement = {"env": "0:0-3", "rollout": "0:0-1", "actor": 0}
    plan = resolve(made({"cluster.component_placement": placement})).plan
    assert (plan.env_workers, plan.inference_ranks, plan.learner_ranks) == (4, 2, 1)


def test_the_sizes_of_a_cluster_that_is_up_beat_the_placement():
    assert resolve(made(), sizes={**ONE_EACH, "env": 2}).plan.env_workers == 2


def test_everything_that_stands_in_the_way_is_said_at_once_with_overrides_to_paste():
    changes = {
        "reward.use_reward_model": True,
        "actor.global_batch_size": 7,
        "runner.val_check_interval": 5,
        "env.eval.total_num_envs": 5,
        "async": {"mode": "full", "rollout": {"shards": 4}},
    }
    with pytest.raises(ValueError, match="this config cannot run for 3 reasons:") as caught:
        resolve(made(changes), sizes=ONE_EACH)
    lines = str(caught.value).splitlines()
    assert [line.split("=")[0].split()[-1] for line in lines[1:-1]] == [
        "reward.use_reward_model",
        "actor.global_batch_size",
        "env.eval.total_num_envs",
    ]
    overrides = (
        "+cluster.component_placement.reward=0-0",
        "env.eval.total_num_envs=4",
    )
    assert all(override in lines[-1].split() for override in overrides)


def test_one_thing_that_stands_in_the_way_is_said_by_itself():
    with pytest.raises(ValueError, match=r"^reward\.use_reward_model=True needs reward workers"):
        resolve(made({"reward.use_reward_model": True}))


def test_the_sizes_of_an_algorithm_that_cannot_run_are_of_no_interest():
    with pytest.raises(ValueError, match=r"^algorithm.loss_type='embodied_sac'"):
        resolve(made({"algorithm.loss_type": "embodied_sac", "actor.global_batch_size": 7}))


def test_what_has_given_way_is_written_back_and_then_as_if_the_user_had_said_it():
    cfg = made(
        {
            "actor.model.model_type": "openvla",
            "rollout.sampling_params.top_k": 50,
            "actor.enable_offload": True,
        }
    )
    write_back(cfg, resolve(cfg, sizes=ONE_EACH))
    assert cfg["async"].train.enabled is False
    assert cfg.actor.enable_offload is False
    found = read_fit(cfg)
    assert found.asynchrony.levels == {"train": False, "rollout": True, "streamer": True}
    assert (found.notes, found.reasons) == ([], ())


def test_the_stages_of_rlinfs_own_loop_stay_in_the_config_where_scenes_follow_from_them():
    cfg = made({"async": {"mode": "full"}})
    cfg.env.train.env_type = "libero"
    write_back(cfg, resolve(cfg, sizes=ONE_EACH))
    assert cfg.rollout.pipeline_stage_num == 1
    assert cfg["async"].rollout.shards == 8
    assert cfg["async"].advanced.fit_shards is True
    # As RLinf's runner reads the config that its workers were started with.
    again = resolve(cfg, sizes=ONE_EACH)
    assert again.plan.shards_per_worker == 8
    assert again.shard_choices == (2, 4)


def test_what_was_resolved_is_written_where_rlinf_looks_for_it():
    cfg = made({"async": {"mode": "full", "streamer": {"micro_batch_size": 8}}})
    cfg.env.train.env_type = "metaworld"
    resolved = resolve(cfg, sizes=ONE_EACH)
    write_back(cfg, resolved)
    assert cfg.rollout.pipeline_stage_num == 8
    assert cfg.actor.micro_batch_size == 8
    assert OmegaConf.to_container(cfg["async"].rollout) == {
        "shards": 8,
        "max_batch_size": 8,
        "max_wait_ms": 0.0,
    }
    assert cfg["async"].mode == "full"


@pytest.mark.parametrize("mode", ["train", "rollout", "streamer", "full"])
@pytest.mark.parametrize("sizes", [ONE_EACH, {"env": 1, "rollout": 2, "actor": 2}])
def test_resolving_what_was_written_back_changes_nothing(mode, sizes):
    cfg = made({"async": {"mode": mode}})
    first = resolve(cfg, sizes=sizes)
    write_back(cfg, first)
    again = resolve(cfg, sizes=sizes)
    assert (again.plan, again.max_batch_size) == (first.plan, first.max_batch_size)
    assert again.asynchrony.levels == first.asynchrony.levels
    assert (again.micro_batch_size, again.streams) == (first.micro_batch_size, first.streams)


def evaluating(total, group=1, **async_block):
    changes = {
        "runner.val_check_interval": 5,
        "env.eval.total_num_envs": total,
        "env.eval.group_size": group,
        "async": {"mode": "full", **async_block},
    }
    return resolve(made(changes), sizes=ONE_EACH)


@settings(deadline=None, max_examples=40)
@given(total=st.integers(1, 30), group=st.sampled_from([1, 2, 3]), shards=st.sampled_from([1, 2, 4]))
def test_evaluation_is_accepted_exactly_when_it_divides_and_what_is_advised_is_accepted(total, group, shards):
    rollout = {"shards": shards, "max_batch_size": 100}
    if total % (shards * group) == 0:
        evaluating(total, group, rollout=rollout)
        return
    with pytest.raises(ValueError, match="nearest") as caught:
        evaluating(total, group, rollout=rollout)
    evaluating(int(re.search(r"nearest: (\d+)$", str(caught.value))[1]), group, rollout=rollout)


def test_evaluation_environments_are_of_no_interest_to_a_run_that_does_not_evaluate():
    resolve(made({"env.eval.total_num_envs": 7}), sizes=ONE_EACH)


def test_an_evaluation_shard_larger_than_a_batch_is_refused_with_the_size_that_is_not():
    with pytest.raises(
        ValueError, match=r"max_batch_size=8; set async.rollout.max_batch_size to at least 16"
    ):
        evaluating(32, rollout={"max_batch_size": 8, "shards": 2})
    assert evaluating(32, rollout={"max_batch_size": 16, "shards": 2}).max_batch_size == 16


def test_evaluation_gives_a_simulator_that_holds_one_environment_one():
    cpu = {"env_type": "maniskill", "init_params": {"sim_backend": "cpu"}, "total_num_envs": 8}
    cfg = made({"runner.val_check_interval": 5, "env.train": {**BASE["env"]["train"], **cpu}})
    cfg.env.eval = {**cpu, "total_num_envs": 16}
    with pytest.raises(ValueError, match=r"env.eval.total_num_envs=16: maniskill simulates one .*; use 8"):
        resolve(cfg, sizes=ONE_EACH)
    cfg.env.eval.total_num_envs = 8
    resolve(cfg, sizes=ONE_EACH)


def test_an_automatic_batch_size_covers_evaluation():
    assert evaluating(32, rollout={"shards": 2}).max_batch_size == 16


def test_without_level_2_there_is_no_batch_size_that_evaluation_could_exceed():
    evaluating(32, rollout={"enabled": False})


@pytest.mark.parametrize(("evaluate", "save"), product(range(-1, 5), repeat=2))
def test_intervals_are_refused_where_rlinfs_own_count_of_steps_would_fail(evaluate, save):
    fails = False
    try:
        check_progress(1, 10, evaluate, save, 1.0)
    except AssertionError:
        fails = True
    runner = {"val_check_interval": evaluate, "save_interval": save}
    view = RLinfView.of({"runner": runner, "env": {"eval": {}}})
    assert bool(list(interval_reasons(view))) == fails
    assert not list(interval_reasons(replace(view, only_eval=True)))


def test_a_run_that_saves_more_often_than_it_evaluates_is_answered_with_the_nearest_number():
    cfg = config({"runner.val_check_interval": 4, "runner.save_interval": 6})
    said = [reason.text for reason in config_reasons(cfg, active=True) if "save_interval" in reason.text]
    assert said == ["runner.save_interval=6 must be a multiple of runner.val_check_interval=4; nearest: 8"]
