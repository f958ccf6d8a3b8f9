"""The numbers of shards that a run may take after its first step, and those of a run that is resumed."""

from dataclasses import asdict, replace

import pytest
from omegaconf import OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.kit.rebuilds import Rebuilds
from rlinf_async.hosts.shard_choices import going_on, shard_choices
from rlinf_async.hosts.simulators import Evaluation
from tests.making import plan, run_settings

LIBERO = {"env_type": "libero"}


def choices(block=None, *, train=LIBERO, stages=1, evaluation=None, most=64, **sizes):
    asynchrony = AsyncConfig.from_mapping({"mode": "full", **(block or {})})
    return shard_choices(
        plan(**{"total_envs": 64, "shards_per_worker": 64, **sizes}),
        train,
        asynchrony,
        stages=stages,
        evaluation=Evaluation(evaluation),
        most=most,
    )


def test_auto_may_join_shards_of_simulators_with_a_process_each():
    assert choices() == (2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    "block",
    [
        {"rollout": {"enabled": True, "shards": 64}},
        {"rollout": {"enabled": False}},
        {"advanced": {"fit_shards": False}},
    ],
)
def test_a_number_of_the_user_is_kept(block):
    assert choices(block) == ()


def test_a_number_of_the_user_may_be_fitted_if_the_user_says_so():
    block = {"rollout": {"enabled": True, "shards": 64}, "advanced": {"fit_shards": True}}
    assert choices(block) == (2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    "train", [{"env_type": "maniskill"}, {"env_type": "metaworld", "processes": 2}, {"env_type": "?"}]
)
def test_simulators_that_share_a_process_or_an_accelerator_are_left_as_they_are(train):
    assert choices(train=train) == ()


def test_stages_of_the_framework_are_kept():
    assert choices(stages=2) == ()


def test_groups_stay_whole():
    assert choices(group_size=8, shards_per_worker=8) == (2, 4)


def test_evaluation_divides_too():
    assert choices(evaluation={"total_num_envs": 8}, shards_per_worker=8) == (2, 4)
    assert choices(evaluation={"total_num_envs": 12}, shards_per_worker=4) == (2,)


def test_a_shard_fits_into_a_forward_pass():
    assert choices(most=8) == (8, 16, 32)


def test_every_inference_rank_keeps_two_shards():
    assert choices(inference_ranks=4, env_workers=2, total_envs=128) == (4, 8, 16, 32)


def saved(settings):
    return asdict(settings.plan)


def test_a_resumed_run_has_the_shards_and_the_pieces_of_the_run_before():
    settings = run_settings(plan=plan(total_envs=16, shards_per_worker=16), shard_choices=(4, 8))
    before = settings.with_shards(4)
    assert going_on(settings, saved(before)) == before
    # As RLinf's runner reads it once the number is written into the config.
    again = replace(settings, plan=plan(total_envs=16, shards_per_worker=4), shard_choices=())
    assert going_on(again, saved(before)) == before


def test_a_resumed_run_whose_number_was_not_changed_keeps_it():
    settings = run_settings(plan=plan(total_envs=16, shards_per_worker=16), shard_choices=(4, 8))
    assert going_on(settings, saved(settings)) == replace(settings, shard_choices=())


@pytest.mark.parametrize("damaged", [None, {}, {"total_envs": "many"}, {"total_envs": 16}, {"shards": 3}])
def test_a_checkpoint_without_a_plan_leaves_the_number_of_the_config(damaged):
    settings = run_settings(plan=plan(total_envs=16, shards_per_worker=16), shard_choices=(4, 8))
    assert going_on(settings, damaged) == replace(settings, shard_choices=())


def test_a_number_in_the_config_overrides_that_of_the_checkpoint():
    settings = run_settings(plan=plan(total_envs=16, shards_per_worker=8))
    before = run_settings(plan=plan(total_envs=16, shards_per_worker=4))
    assert going_on(settings, saved(before)).plan.shards_per_worker == 8


def test_other_environments_or_ranks_do_not_take_over_the_shards():
    settings = run_settings(plan=plan(total_envs=32, shards_per_worker=32), shard_choices=(4, 8))
    before = run_settings(plan=plan(total_envs=16, shards_per_worker=4))
    assert going_on(settings, saved(before)).plan == settings.plan


def test_environments_of_other_shards_have_a_seed_that_none_had_before():
    rebuilds, section = Rebuilds(), OmegaConf.create({"seed": 7})
    rebuilds.count("train", 3)
    seeds = {rebuilds.seeded("train", stage, section).seed for stage in range(4)}
    rebuilds.count_all("train", 2)
    later = {rebuilds.seeded("train", stage, section).seed for stage in range(2)}
    assert len(later) == 1
    assert not later & seeds
