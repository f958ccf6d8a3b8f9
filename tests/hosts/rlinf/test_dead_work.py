"""What `explain` says that a config of RLinf's leaves out, and that its remedies are true."""

import pytest

from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.rlinf.dead_work import dead_work
from rlinf_async.hosts.rlinf.explain import explain
from rlinf_async.hosts.rlinf.settings import read_settings
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.hosts.rlinf.given import ONE_EACH, config

LIBERO = "libero_object_ppo_vla"
VIDEO = "env.train.video_cfg.save_video"


def told(config, *overrides):
    facts = explain(compose_config(config, list(overrides)))
    return {one["kind"]: one for one in facts["dead_work"]}


def test_nothing_is_told_where_nothing_is_to_be_left_out():
    assert told("metaworld_ppo_mlp", "async.mode=off") == {}
    assert told("metaworld_ppo_mlp", "async.mode=train") == {}


def test_frames_are_drawn_for_a_video_and_each_override_of_the_reason_leaves_them_out():
    watched = told(LIBERO, f"{VIDEO}=true")["frames"]
    assert watched["left_out"] == ""
    (reason,) = watched["kept"]
    for override in (f"{VIDEO}=false", "++env.train.video_cfg.decisions_only=true"):
        assert override in reason
        assert told(LIBERO, f"{VIDEO}=true", override)["frames"]["left_out"]


def test_a_video_costs_the_frames_of_a_decision_for_each_that_the_policy_sees():
    (reason,) = told(LIBERO, f"{VIDEO}=true")["frames"]["kept"]
    assert "5 are drawn for each one" in reason


@pytest.mark.parametrize("kind", ["ended", "masked"])
@pytest.mark.parametrize("key", ["auto_reset", "ignore_terminations"])
def test_what_follows_an_end_and_counts_is_done_and_the_override_of_the_reason_leaves_it_out(key, kind):
    counting = told("metaworld_ppo_mlp", f"env.train.{key}=true")[kind]
    assert counting["left_out"] == ""
    (reason,) = counting["kept"]
    assert f"env.train.{key}=true" in reason
    assert reason.endswith(f"env.train.{key}=false leaves this work out")
    assert "after the end" in told("metaworld_ppo_mlp", f"env.train.{key}=false")[kind]["left_out"]


def test_a_reward_that_counts_for_earlier_steps_has_later_ones_played_and_its_override_leaves_them_out():
    scored = (
        "++reward.use_reward_model=true",
        "++reward.reward_mode=history_buffer",
        "++reward.history_reward_assign=true",
        "++reward.model.model_type=resnet",
        "++cluster.component_placement={env: all, rollout: all, actor: all, reward: all}",
    )
    counting = told("metaworld_ppo_mlp", *scored)["ended"]
    assert counting["left_out"] == ""
    (reason,) = counting["kept"]
    override = "reward.history_reward_assign=false"
    assert override in reason
    assert told("metaworld_ppo_mlp", *scored, override)["ended"]["left_out"]


@pytest.mark.parametrize(
    ("simulator", "unit", "reason"),
    [
        ("libero", "a simulator is not stepped", None),
        ("maniskill", "a shard is not stepped", "as one batch"),
        ("isaaclab", "a shard is not stepped", "as one batch"),
        ("calvin", "a shard is not stepped", "was not examined"),
        ("mine", "a shard is not stepped", "let_play"),
    ],
)
def test_simulators_that_are_stepped_until_their_shard_has_ended_are_told(simulator, unit, reason):
    section = {"env_type": simulator, "auto_reset": False, "ignore_terminations": False}
    if simulator == "mine":
        section["env_class"] = "mine"
    changes = {f"env.train.{key}": value for key, value in section.items()}
    cfg = config(changes)
    settings = read_settings(cfg, AsyncConfig.from_mapping({"mode": "full"}), ONE_EACH)
    ended = {one["kind"]: one for one in dead_work(RLinfView.of(cfg), settings)}["ended"]
    assert unit in ended["left_out"]
    assert len(ended["kept"]) == (reason is not None)
    assert all(reason in text for text in ended["kept"])


BONUS = "algorithm.entropy_bonus=0.01"
MEAN = "algorithm.entropy_type=action_level"


def test_a_bonus_for_entropy_keeps_what_it_counts_and_each_override_leaves_its_samples_out():
    counted = told("metaworld_grpo_mlp", BONUS, "algorithm.entropy_type=token_level")["masked"]
    assert counted["left_out"] == ""
    whole, groups = counted["kept"]
    assert MEAN in whole
    mean = told("metaworld_grpo_mlp", BONUS, MEAN)["masked"]
    assert "after the end" in mean["left_out"]
    assert "equal rewards" not in mean["left_out"]
    assert mean["kept"] == (groups,)
    none = "algorithm.entropy_bonus=0"
    assert none in groups
    assert told("metaworld_grpo_mlp", none)["masked"]["kept"] == ()


def test_a_penalty_by_kl_that_rlinfs_workers_never_read_keeps_nothing():
    assert told("metaworld_grpo_mlp", "++algorithm.kl_beta=0.1") == told("metaworld_grpo_mlp")


def test_samples_that_no_mask_of_the_config_leaves_out_are_not_named():
    bounds = ("+algorithm.rewards_lower_bound=0.1", "+algorithm.rewards_upper_bound=0.9")
    plain, filtered = (
        told("metaworld_grpo_mlp", *more)["masked"]["left_out"]
        for more in ((), ("algorithm.filter_rewards=true", *bounds))
    )
    assert "filter" not in plain
    assert "after the end of an episode, of groups that a filter masks, of groups with equal" in filtered


def test_samples_of_silent_groups_are_named_under_grpo_alone():
    assert "equal rewards" in told("metaworld_grpo_mlp")["masked"]["left_out"]
    assert "equal rewards" not in told("metaworld_ppo_mlp")["masked"]["left_out"]
