"""What of an `async` block a config can have, and what gives way to it."""

import pytest

from rlinf_async.config import LEVEL_NAMES
from rlinf_async.hosts.rlinf.reasons import fit
from rlinf_async.hosts.rlinf.settings import OFFLOAD_KEYS
from tests.hosts.rlinf.given import config

TOP_K = {"actor.model.model_type": "openvla", "rollout.sampling_params.top_k": 50}
"""What level 1 does not go with."""
OFFLOADED = dict.fromkeys(OFFLOAD_KEYS, True)


def fitted(changes=None, **block):
    return fit(config({**(changes or {}), "async": {"mode": "full", **block}}))


def on(fit):
    return [level for level, enabled in fit.asynchrony.levels.items() if enabled]


def overrides(fit):
    return [reason.override for reason in fit.reasons]


def test_a_config_that_everything_goes_with_has_all_levels_and_changes_nothing():
    found = fitted()
    assert on(found) == list(LEVEL_NAMES)
    assert (found.dropped, found.changes, found.reasons, found.notes) == ({}, (), (), [])


def test_a_level_of_the_preset_gives_way_to_a_setting_that_cannot_have_it_and_says_so():
    found = fitted(TOP_K)
    assert (on(found), found.reasons) == (["rollout", "streamer"], ())
    (note,) = found.notes
    assert note.startswith("async.train stays off: it does not support rollout.sampling_params.top_k=50")


@pytest.mark.parametrize(
    "block", [{"train": {"enabled": True}}, {"mode": "train"}, {"mode": "off", "train": {"enabled": True}}]
)
def test_a_level_that_was_asked_for_by_name_is_refused_by_name(block):
    found = fitted(TOP_K, **block)
    (reason,) = found.reasons
    assert reason.text.startswith("async.train does not support rollout.sampling_params.top_k=50")
    assert found.asynchrony.train.enabled  # the run must not go on as if nothing had been asked for
    assert not found.dropped


def test_other_keys_of_a_level_do_not_ask_for_it():
    assert on(fitted(TOP_K, train={"max_staleness": 2})) == ["rollout", "streamer"]


def test_without_a_level_that_remains_it_is_an_error_and_never_a_synchronous_run():
    for found in (
        fitted({"reward.use_reward_model": True}),
        fitted(TOP_K, rollout={"enabled": False}, streamer={"enabled": False}),
    ):
        assert found.asynchrony.active
        assert len(found.reasons) == 1
        assert not found.dropped


def test_levels_asked_for_by_name_are_refused_where_no_level_can_be():
    found = fitted({"reward.use_reward_model": True}, rollout={"enabled": True})
    assert overrides(found) == ["+cluster.component_placement.reward=0-0"]


def test_everything_that_stands_in_the_way_is_named_at_once():
    found = fitted(
        {**TOP_K, "reward.use_reward_model": True, "actor.training_backend": "megatron"},
        train={"enabled": True},
    )
    assert len(found.reasons) == 3
    assert overrides(found) == [
        "+cluster.component_placement.reward=0-0",
        "",
        "rollout.sampling_params.top_k=-1",
    ]


@pytest.mark.parametrize("level", ["train", "streamer", "full"])
def test_offloading_of_what_works_at_the_same_time_is_switched_off_and_said(level):
    found = fitted(OFFLOADED, mode=level)
    assert found.reasons == ()
    assert {change.key: change.value for change in found.changes} == dict.fromkeys(OFFLOAD_KEYS, False)
    assert found.notes[0].startswith("actor.enable_offload=false: ")


def test_level_2_alone_keeps_turns_and_the_offloading_with_them():
    found = fitted(OFFLOADED, mode="rollout")
    assert (found.changes, found.reasons, on(found)) == ((), (), ["rollout"])


def test_with_all_levels_off_nothing_is_touched():
    found = fitted({**OFFLOADED, "reward.use_reward_model": True}, mode="off")
    assert (found.changes, found.dropped, found.reasons) == ((), {}, ())


def test_a_model_that_rlinf_can_only_evaluate_is_refused_by_name():
    (reason,) = fitted({"actor.model.model_type": "molmoact2"}).reasons
    assert reason.text.startswith(
        "actor.model.model_type=molmoact2: RLinf can evaluate this model, and not train it"
    )


REWARDED = {"reward.use_reward_model": True, "cluster.component_placement.reward": "0-0"}


def test_a_reward_model_is_served_but_for_a_reward_of_the_rollout_before():
    assert not fitted(REWARDED).reasons
    spread = {"reward.reward_mode": "history_buffer", "reward.history_reward_assign": True}
    more = {"env.train.rollout_epoch": 2, "env.train.auto_reset": True}
    assert not fitted({**REWARDED, **spread}).reasons
    assert not fitted({**REWARDED, **more}).reasons
    assert overrides(fitted({**REWARDED, **spread, **more})) == ["env.train.rollout_epoch=1"]


@pytest.mark.parametrize(
    ("changes", "said", "override"),
    [
        ({"actor.model.model_type": "cnn_policy"}, "no layer", "actor.model.is_lora=false"),
        ({"actor.model.model_type": "mlp_policy"}, "no layer", "actor.model.is_lora=false"),
        ({"actor.model.lora_rank": None}, "no actor.model.lora_rank", "++actor.model.lora_rank=32"),
    ],
)
def test_adapters_that_rlinf_could_not_add_are_named_before_its_workers_start(changes, said, override):
    lora = {"actor.model.model_type": "openpi", "actor.model.is_lora": True, "actor.model.lora_rank": 4}
    assert fitted(lora).reasons == ()
    (reason,) = fitted({**lora, **changes}).reasons
    assert said in reason.text
    assert reason.override == override
    assert fitted({**lora, **changes, "actor.model.is_lora": False}).reasons == ()
    assert fitted({**lora, **changes, "actor.model.lora_path": "/adapters"}).reasons == ()
