"""What `explain` says that a config of RLinf's leaves out, and that its remedies are true."""

import pytest

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.explain import explain

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


@pytest.mark.parametrize("key", ["auto_reset", "ignore_terminations"])
def test_steps_after_an_end_that_count_are_played_and_the_override_of_the_reason_leaves_them_out(key):
    counting = told("metaworld_ppo_mlp", f"env.train.{key}=true")["ended"]
    assert counting["left_out"] == ""
    assert any(f"env.train.{key}=true" in reason for reason in counting["kept"])
    assert told("metaworld_ppo_mlp", f"env.train.{key}=false")["ended"]["left_out"]


def test_samples_of_silent_groups_are_named_under_grpo_alone():
    assert "equal rewards" in told("metaworld_grpo_mlp")["masked"]["left_out"]
    assert "equal rewards" not in told("metaworld_ppo_mlp")["masked"]["left_out"]
