import re

import pytest

from rlinf_async.config import LEVEL_NAMES
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.losses import ON_POLICY_LOSSES, OTHER_ALGORITHMS
from rlinf_async.hosts.rlinf.reasons import fit
from rlinf_async.hosts.rlinf.scoring import TOKEN_MODELS
from tests.hosts.rlinf.given import SYNCER, config

WRONG = {
    "rollout.expert_model": {"model_path": "teacher"},
    "rollout.collect_prev_infos": False,
    "runner.weight_sync_interval": 2,
    "rollout.collect_final_values": False,
    "rollout.sampling_params.top_k": 50,
    "cluster.profiling": {"backend": "nsight"},
    "actor.fsdp_config.sharding_strategy": "hybrid_shard",
}
"""A value that is refused, where it is not True."""


def check(changes, mode, **block):
    refuse(fit(config({**changes, "async": {"mode": mode, **block}})).reasons)


def wrong(refusal):
    tokens = {"actor.model.model_type": "openvla"} if "top_k" in refusal.name else {}
    return {refusal.name: WRONG.get(refusal.name, True), **tokens}


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("refusal", TABLE.refused, ids=lambda refusal: refusal.name)
def test_a_setting_is_refused_by_name_for_the_levels_that_cannot_serve_it_and_only_for_them(refusal, level):
    if level not in refusal.levels:
        check(wrong(refusal), level)
        return
    with pytest.raises(ValueError, match=f"async.{level} does not support {refusal.name}=") as caught:
        check(wrong(refusal), level)
    assert str(caught.value).endswith(refusal.remedy)


@pytest.mark.parametrize("refusal", TABLE.refused, ids=lambda refusal: refusal.name)
def test_every_setting_is_allowed_when_all_levels_are_off(refusal):
    check(wrong(refusal), "off")


@pytest.mark.parametrize("value", [False, None])
@pytest.mark.parametrize(
    "refusal",
    [refusal for refusal in TABLE.refused if refusal.name not in WRONG],
    ids=lambda refusal: refusal.name,
)
def test_a_setting_that_is_off_is_allowed(refusal, value):
    check({refusal.name: value}, "full")


@pytest.mark.parametrize(
    "changes",
    [
        {"runner.weight_sync_interval": None},
        {"runner.weight_sync_interval": 1},
        {"cluster.profiling": None},
        {"cluster.profiling": {}},
        {"cluster.profiling": {"enabled": False, "backend": "nsight"}},
        {"actor.fsdp_config": {"strategy": "fsdp", "sharding_strategy": "full_shard"}},
        {"actor.fsdp_config": {"strategy": "fsdp", "sharding_strategy": "shard_grad_op"}},
        {"actor.fsdp_config": {"strategy": "fsdp2", "sharding_strategy": "hybrid_shard"}},
    ],
)
def test_a_value_that_every_level_can_serve_is_allowed(changes):
    check(changes, "full")


@pytest.mark.parametrize("loss", sorted(ON_POLICY_LOSSES))
@pytest.mark.parametrize("mode", LEVEL_NAMES)
def test_losses_with_a_correction_are_supported(loss, mode):
    check({"algorithm.loss_type": loss}, mode)


@pytest.mark.parametrize("mode", LEVEL_NAMES)
@pytest.mark.parametrize(("loss", "name"), [(loss, name) for loss, (name, *_) in OTHER_ALGORITHMS.items()])
def test_another_algorithm_is_refused_by_its_name_before_anything_else(mode, loss, name):
    changes = {
        "algorithm.loss_type": loss,
        "rollout.collect_transitions": True,
        "reward.use_reward_model": True,
    }
    with pytest.raises(ValueError, match=rf"^algorithm\.loss_type='{loss}' is {name};") as caught:
        check(changes, mode)
    assert re.search(r"RLinf's own (train_\w+\.py \(\w+Runner\)( or )?)+ trains with it", str(caught.value))
    assert str(caught.value).endswith("use async.mode=off")
    assert "NFT (embodied_nft) and on-policy distillation (opd)" in str(caught.value)


@pytest.mark.parametrize("mode", ["lean", *LEVEL_NAMES, "full"])
@pytest.mark.parametrize("advantage", ["grpo", "raw"])
def test_nft_is_served_in_every_mode_with_the_advantages_of_its_examples(mode, advantage):
    check(
        {"algorithm.loss_type": "embodied_nft", "algorithm.adv_type": advantage, "algorithm.group_size": 2},
        mode,
    )


def test_a_config_without_rl_is_refused_with_the_scripts_of_rlinf_that_run_it():
    with pytest.raises(ValueError, match=r"no algorithm.loss_type, .*collect_real_data.py.*async.mode=off$"):
        check({"algorithm": {}}, "full")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm.loss_type": "mine"}, "loss_type='mine' is none of these"),
        ({"algorithm.adv_type": "reinpp"}, "algorithm.adv_type='reinpp' is none of these"),
        ({"algorithm.adv_type": "opd", "algorithm.loss_type": "opd"}, "'opd' is on-policy distillation"),
    ],
)
def test_what_is_no_ppo_and_no_grpo_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        check(changes, "full")


def test_a_reward_model_needs_reward_workers_unless_the_environment_asks_it_by_itself():
    reward = {"use_reward_model": True, "model": {"model_type": "resnet"}}
    with pytest.raises(ValueError, match=r"reward\.use_reward_model=True needs reward workers"):
        check({"reward": reward}, "rollout")
    check({"reward": {**reward, "standalone_realworld": True}}, "full")
    check({"reward": {**reward, "use_reward_model": False}}, "full")
    check({"reward": reward}, "off")


def test_another_training_backend_is_refused():
    with pytest.raises(ValueError, match=r"training_backend='megatron'.*use fsdp"):
        check({"actor.training_backend": "megatron"}, "rollout")


@pytest.mark.parametrize(
    "changes", [{"algorithm.loss_type": "embodied_sac"}, {"actor.training_backend": "megatron"}]
)
def test_the_way_out_that_a_refusal_names_is_open(changes):
    check(changes, "off")


@pytest.mark.parametrize("model", sorted(TOKEN_MODELS))
def test_sampling_from_the_top_is_refused_where_tokens_are_old(model):
    changes = {"actor.model.model_type": model, "rollout.sampling_params.top_k": 50}
    with pytest.raises(ValueError, match=r"top_k=50; set it to -1"):
        check(changes, "train")
    check(changes, "rollout")
    check(changes, "train", train={"max_staleness": 0})


@pytest.mark.parametrize(
    ("model", "top_k"), [("openvla_oft", -1), ("openvla_oft", 0), ("openvla_oft", None), ("gr00t", 50)]
)
def test_sampling_from_all_tokens_and_models_that_read_no_top_k_are_allowed(model, top_k):
    check({"actor.model.model_type": model, "rollout.sampling_params.top_k": top_k}, "train")


def test_a_fixed_lag_is_refused_where_evaluation_would_draw_from_the_same_generator():
    with pytest.raises(ValueError, match=r"async.deterministic=true with runner.val_check_interval=5"):
        check({"runner.val_check_interval": 5}, "train", deterministic=True)
    check({"runner.val_check_interval": -1}, "train", deterministic=True)
    check({"runner.val_check_interval": 5}, "train")


BOUNDS = {"algorithm.rewards_lower_bound": 0.1, "algorithm.rewards_upper_bound": 0.9}


@pytest.mark.parametrize("missing", sorted(BOUNDS))
def test_a_filter_of_rewards_needs_both_of_its_bounds(missing):
    filtered = {"algorithm.filter_rewards": True, "actor.model.add_value_head": True, **BOUNDS, **SYNCER}
    assert not list(TABLE.conflict_reasons(config(filtered)))
    (reason,) = TABLE.conflict_reasons(config({**filtered, missing: None}))
    assert missing in reason.text
    assert reason.override == "algorithm.filter_rewards=false"
