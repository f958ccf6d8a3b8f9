import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.rlinf.settings import counts_after_the_end, last_step, read_settings
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.hosts.rlinf.given import ONE_EACH, config


def read(changes=None, sizes=ONE_EACH, **block):
    return read_settings(config(changes), AsyncConfig.from_mapping({"mode": "full", **block}), sizes)


def processes(env=1, rollout=1, actor=1):
    return {"env": env, "rollout": rollout, "actor": actor}


def test_a_step_is_counted_in_decisions_as_rlinf_does():
    made = read({"env.train.rollout_epoch": 3})
    assert (made.horizon, made.steps_per_decision) == (4, 5)
    assert made.samples_per_batch == 8 * 3 * 4
    assert made.optimizer_steps == 6
    assert made.micro_batches_per_step == 4


def test_learner_ranks_share_a_step():
    made = read(sizes=processes(actor=2))
    assert made.micro_batches_per_step == 2
    assert made.optimizer_steps == 2


@pytest.mark.parametrize(("steps", "batches"), [(-1, 10), (None, 10), (0, 0), (4, 4), (99, 10)])
def test_a_run_ends_at_its_epochs_or_its_steps_whichever_comes_first(steps, batches):
    assert read({"runner.max_steps": steps}).batches == batches


def test_auto_gives_every_cpu_simulator_a_shard_and_an_inference_rank_its_fair_share():
    made = read(sizes=processes(rollout=2))
    assert made.plan.shards_per_worker == 8
    assert made.max_batch_size == 4


def test_auto_never_makes_a_batch_smaller_than_a_shard():
    made = read({"env.train.env_type": "maniskill"}, sizes=processes(rollout=4))
    assert (made.plan.shards_per_worker, made.max_batch_size) == (1, 8)


def test_a_vectorised_simulator_that_is_to_be_split_is_refused():
    with pytest.raises(ValueError, match="would split isaaclab"):
        read({"env.train.env_type": "isaaclab"}, rollout={"shards": 2})


def test_without_level_2_the_users_pipeline_stages_are_the_shards():
    assert read({"rollout.pipeline_stage_num": 4}, rollout={"enabled": False}).plan.shards_per_worker == 4


@pytest.mark.parametrize(("env", "rollout"), [(1, 1), (1, 3), (3, 1), (2, 3), (2, 4), (3, 2)])
def test_without_level_2_every_inference_rank_has_a_shard(env, rollout):
    made = read(
        {"env.train.total_num_envs": 48},
        sizes=processes(env=env, rollout=rollout),
        rollout={"enabled": False},
    )
    assert {made.plan.queue(shard)[0] for shard in range(made.plan.shards)} == set(range(rollout))


@pytest.mark.parametrize("simulator", ["maniskill", "isaaclab", "a_simulator_of_tomorrow"])
@pytest.mark.parametrize("enabled", [True, False])
def test_simulators_that_may_be_one_batch_are_not_split_by_the_number_of_inference_ranks(simulator, enabled):
    changes = {"env.train.total_num_envs": 48, "env.train.env_type": simulator}
    made = read(changes, sizes=processes(env=2, rollout=8), rollout={"enabled": enabled})
    assert made.plan.shards_per_worker == 1
    staged = read(
        {**changes, "rollout.pipeline_stage_num": 2}, sizes=processes(2, 8), rollout={"enabled": False}
    )
    assert staged.plan.shards_per_worker == 2


@pytest.mark.parametrize(("env", "rollout", "actor"), [(3, 1, 1), (1, 3, 1), (2, 2, 2), (3, 1, 2), (1, 2, 4)])
def test_any_ratio_of_processes_is_accepted_when_the_environments_divide(env, rollout, actor):
    made = read({"env.train.total_num_envs": 24}, sizes=processes(env, rollout, actor))
    assert made.plan.total_envs == 24
    assert made.plan.pieces_per_rank * actor * made.plan.piece_size == 24


def test_groups_are_kept_whole_for_grpo():
    made = read({"algorithm.adv_type": "grpo", "algorithm.loss_type": "actor", "env.train.group_size": 4})
    assert (made.plan.group_size, made.plan.piece_size % 4) == (4, 0)
    with pytest.raises(ValueError, match="nearest number of shards per worker that does: 2"):
        read({"algorithm.adv_type": "grpo", "env.train.group_size": 4}, rollout={"shards": 4})


def test_the_streamers_micro_batch_counts_only_while_it_is_on():
    assert read(streamer={"micro_batch_size": 8}).micro_batch_size == 8
    assert read(streamer={"micro_batch_size": 8, "enabled": False}).micro_batch_size == 4


@pytest.mark.parametrize(
    ("advantage", "normalization", "enabled", "streams"),
    [
        ("gae", "running", True, True),
        ("gae", "deferred", True, False),
        ("grpo", "deferred", True, True),
        ("grpo", "running", False, False),
    ],
)
def test_gae_with_deferred_normalization_waits_for_the_whole_batch(
    advantage, normalization, enabled, streams
):
    block = {"streamer": {"enabled": enabled}, "advanced": {"normalization": normalization}}
    made = read({"algorithm.adv_type": advantage}, **block)
    assert made.streams == streams


def test_a_batch_smaller_than_a_shard_is_refused_with_the_least_that_is_not():
    with pytest.raises(
        ValueError, match=r"max_batch_size=3 is smaller than a shard of 4.*at least 4, or more shards"
    ):
        read(rollout={"max_batch_size": 3, "shards": 2})
    assert read(rollout={"max_batch_size": 4}).max_batch_size == 4
    assert read(rollout={"max_batch_size": 3, "shards": 4}).max_batch_size == 3


def test_a_batch_size_is_of_no_interest_while_level_2_is_off():
    assert not read(rollout={"max_batch_size": 3, "enabled": False}).asynchrony.rollout.enabled


def fits(global_batch, micro_batch, ranks, samples):
    return global_batch % (micro_batch * ranks) == 0 and samples % global_batch == 0


@settings(deadline=None, max_examples=200)
@given(
    width=st.integers(1, 6),
    ranks=st.integers(1, 3),
    horizon=st.integers(1, 6),
    epochs=st.integers(1, 3),
    micro_batch=st.integers(1, 20),
    global_batch=st.integers(1, 120),
)
def test_batch_sizes_are_accepted_exactly_when_they_divide_and_what_is_advised_is_accepted(
    width, ranks, horizon, epochs, micro_batch, global_batch
):
    samples = width * ranks * horizon * epochs

    def attempt(micro_batch, global_batch, total=width * ranks):
        changes = {
            "env.train.total_num_envs": total,
            "env.train.rollout_epoch": epochs,
            "env.train.max_steps_per_rollout_epoch": 5 * horizon,
            "actor.micro_batch_size": micro_batch,
            "actor.global_batch_size": global_batch,
        }
        return read(changes, sizes=processes(actor=ranks), rollout={"shards": 1})

    if fits(global_batch, micro_batch, ranks, samples):
        made = attempt(micro_batch, global_batch)
        steps = made.optimizer_steps * made.micro_batches_per_step
        assert steps * micro_batch * ranks == samples == made.samples_per_batch
        return
    with pytest.raises(ValueError, match="nearest") as caught:
        attempt(micro_batch, global_batch)
    if samples % (micro_batch * ranks):
        if other := re.search(r"or env\.train\.total_num_envs: (\d+)$", str(caught.value)):
            total = int(other[1])
            assert total * horizon * epochs % (micro_batch * ranks) == 0
            if fits(global_batch, micro_batch, ranks, total * horizon * epochs):
                attempt(micro_batch, global_batch, total)
        micro_batch = nearest(
            r"nearest micro_batch_size: (\d+)",
            caught.value,
            wanted=micro_batch,
            valid=lambda size: samples % (size * ranks) == 0,
        )
        if fits(global_batch, micro_batch, ranks, samples):
            attempt(micro_batch, global_batch)
            return
        with pytest.raises(ValueError, match="nearest") as caught:
            attempt(micro_batch, global_batch)
    global_batch = nearest(
        r"^actor\.global_batch_size=.*nearest: (\d+)$",
        caught.value,
        wanted=global_batch,
        valid=lambda size: fits(size, micro_batch, ranks, samples),
    )
    attempt(micro_batch, global_batch)


def nearest(pattern, error, *, wanted, valid):
    """What the error advises, which must be valid, and nothing nearer may be."""
    found = re.search(pattern, str(error))
    assert found, error
    advised = int(found[1])
    assert valid(advised)
    distance = abs(advised - wanted)
    assert not any(valid(size) for size in range(max(1, wanted - distance + 1), wanted + distance))
    return advised


def test_a_total_that_does_not_divide_is_refused_with_one_that_does():
    with pytest.raises(ValueError, match=r"7 environments do not divide among 2 learner ranks; .*does: 8"):
        read({"env.train.total_num_envs": 7}, sizes=processes(actor=2), rollout={"shards": 1})


ON_THE_CPU = {"env.train.env_type": "maniskill", "env.train.init_params": {"sim_backend": "cpu"}}
"""ManiSkill, which simulates one environment at a time there."""


@pytest.mark.parametrize("backend", ["cpu", "physx_cpu"])
@pytest.mark.parametrize("block", [{}, {"rollout": {"shards": 4}}, {"rollout": {"enabled": False}}])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_simulator_that_holds_one_environment_is_a_shard_whatever_the_level(backend, block, stages):
    changes = {**ON_THE_CPU, "env.train.init_params": {"sim_backend": backend}}
    made = read({**changes, "rollout.pipeline_stage_num": stages}, sizes=processes(env=2), **block)
    assert (made.plan.shards_per_worker, made.plan.envs_per_shard) == (4, 1)


@pytest.mark.parametrize("backend", ["gpu", "physx_cuda:1", "auto"])
def test_on_a_gpu_that_simulator_is_not_split(backend):
    changes = {**ON_THE_CPU, "env.train.init_params": {"sim_backend": backend}}
    assert read(changes).plan.shards_per_worker == 1


def test_two_environments_in_a_simulator_that_holds_one_are_refused_with_what_is_valid():
    with pytest.raises(ValueError, match=r"shards=2: maniskill simulates one .*; use auto or 8"):
        read(ON_THE_CPU, rollout={"shards": 2})
    with pytest.raises(ValueError, match=r"group_size=4: maniskill simulates one .*; use 1, or"):
        read({**ON_THE_CPU, "env.train.group_size": 4, "algorithm.adv_type": "grpo"})


GRAPHS = {"rollout.enable_cuda_graph": True}
EVALUATING = {"runner.val_check_interval": 5, "env.eval.total_num_envs": 32}


def test_captured_graphs_have_one_size_the_largest_batch_that_a_rank_can_meet():
    assert read(GRAPHS).buckets == (8,)
    assert read(GRAPHS, rollout={"max_batch_size": 5}).buckets == (5,)
    assert read({**GRAPHS, **EVALUATING}, rollout={"shards": 2}).buckets == (16,)
    assert read({**GRAPHS, "rollout.enable_torch_compile": True}).buckets == (8,)


@pytest.mark.parametrize("changes", [{}, EVALUATING])
@pytest.mark.parametrize(
    ("env", "rollout", "stages"), [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 4, 1), (4, 2, 1)]
)
def test_without_level_2_the_captured_size_holds_everybody_who_may_be_in_flight(
    env, rollout, stages, changes
):
    given = {**GRAPHS, **changes, "rollout.pipeline_stage_num": stages, "env.train.total_num_envs": 16}
    made = read(given, sizes=processes(env=env, rollout=rollout), rollout={"enabled": False})
    shards = range(made.plan.shards)
    queues = {made.plan.queue(shard) for shard in shards}
    crowd = max(sum(made.plan.queue(shard) == queue for shard in shards) for queue in queues)
    each = max(16, 32 if changes else 0) // made.plan.shards
    assert made.buckets == (crowd * each,)


def test_everything_about_sizes_that_stands_in_the_way_is_said_at_once():
    with pytest.raises(ValueError, match="cannot run for 2 reasons") as caught:
        read({"actor.global_batch_size": 7, **EVALUATING}, rollout={"shards": 3 + 1, "max_batch_size": 4})
    assert "actor.global_batch_size=7" in str(caught.value)
    assert "exceeds max_batch_size=4" in str(caught.value)


@pytest.mark.parametrize(
    ("adv_type", "compared", "alike", "together"),
    [("grpo", 4, 1, 4), ("grpo", 4, 4, 4), ("grpo", 2, 4, 4), ("grpo", 4, 2, 4), ("gae", 4, 1, 1)],
)
def test_environments_whose_advantages_are_compared_stay_together(adv_type, compared, alike, together):
    changes = {
        "algorithm.adv_type": adv_type,
        "algorithm.loss_type": "actor" if adv_type == "grpo" else "actor_critic",
        "algorithm.group_size": compared,
        "env.train.group_size": alike,
    }
    plan = read(changes).plan
    assert plan.group_size == together
    assert plan.envs_per_shard % together == 0


@pytest.mark.parametrize("steps", [-1, 0, 4, 99])
def test_composed_or_plain_a_section_says_the_same_of_its_last_step(steps):
    for runner in ({"max_epochs": 10, "max_steps": steps}, {"max_epochs": 10, "max_steps": "???"}):
        composed = OmegaConf.create({"runner": runner})
        assert last_step(composed.runner) == last_step(plain(composed)["runner"])


MASKED = {"env.train.auto_reset": False, "env.train.ignore_terminations": False}


@pytest.mark.parametrize(
    ("changes", "override"),
    [
        ({}, ""),
        ({"env.train.auto_reset": True}, "env.train.auto_reset=false"),
        ({"env.train.ignore_terminations": True}, "env.train.ignore_terminations=false"),
    ],
)
def test_what_follows_an_episodes_end_is_left_out_where_nothing_of_it_counts(changes, override):
    cfg = config({**MASKED, **changes})
    assert [reason.override for reason in counts_after_the_end(RLinfView.of(cfg))] == (
        [override] if override else []
    )
    assert read({**MASKED, **changes}).skips_ended == (not override)
    assert not read({**MASKED, **changes}, skip={"ended": False}).skips_ended


def test_compiled_policies_are_padded_to_the_sizes_of_requests_that_some_episodes_have_left():
    compiled = {**MASKED, "rollout.enable_torch_compile": True}
    shards = {"shards": 2}
    assert read(compiled, rollout=shards, skip=False).buckets == (4, 8)
    assert read(compiled, rollout=shards).buckets == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("rollout", "stages", "nearest"),
    [({}, 1, 64), ({"shards": 3}, 1, 96), ({}, 3, 96), ({"enabled": False}, 1, 64)],
)
def test_a_number_of_shards_that_follows_the_environments_is_no_part_of_the_advice(rollout, stages, nearest):
    """LIBERO's simulators have a process each, so that `auto` has a shard for each."""
    changes = {
        "env.train.total_num_envs": 63,
        "rollout.pipeline_stage_num": stages,
        "actor.micro_batch_size": 128,
        "actor.global_batch_size": 128,
    }
    with pytest.raises(ValueError, match=rf"or env\.train\.total_num_envs: {nearest}$"):
        read(changes, rollout=rollout)
    read({**changes, "env.train.total_num_envs": nearest}, rollout=rollout)


def test_sizes_in_chunks_are_judged_once_an_episode_is_a_whole_number_of_chunks():
    with pytest.raises(
        ValueError, match=r"^env\.train\.max_steps_per_rollout_epoch=20 is no multiple .*; nearest: 21$"
    ):
        read({"actor.model.num_action_chunks": 3, "actor.micro_batch_size": 7})


def test_groups_of_workers_have_names_of_their_own():
    names = {"actor.group_name": "Mine", "rollout.group_name": "Rollout", "env.group_name": "Mine"}
    with pytest.raises(ValueError, match=r"^actor\.group_name and env\.group_name are both Mine; give each"):
        read(names)
    read({**names, "env.group_name": "Env"})
