"""What `explain` says of a config, as data and for a reader."""

import io

import pytest

pytest.importorskip("verl", reason="veRL is not installed")

from rich.console import Console

from rlinf_async.config_diff import differences
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.verl.explain import explain, show
from rlinf_async.hosts.verl.host import VerlHost
from tests.hosts.verl.configs import composed

pytestmark = pytest.mark.verl


def shown(config):
    console = Console(file=io.StringIO(), width=200)
    show(explain(config), console)
    return console.file.getvalue()


def test_levels_say_whether_they_are_exact():
    facts = explain(composed())
    assert facts["exactness"]["train"].startswith("approximate (samples are up to 1 policy version old")
    assert facts["exactness"]["rollout"].startswith("exact")
    assert facts["exactness"]["streamer"].startswith("exact (normalization is deferred")
    assert facts["proximal"] == "recomputed"


def test_steps_that_are_spread_over_the_batch_are_exact():
    said = explain(composed(name="verl_metaworld_grpo_mlp"))
    assert said["exactness"]["streamer"].startswith("exact (every optimizer step has an equal share")


def test_a_loss_that_chooses_within_a_micro_batch_is_no_exact_one():
    overrides = ("actor_rollout_ref.actor.ppo_mini_batch_size=4",)
    chooses = "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov"
    said = explain(composed(*overrides, chooses, name="verl_metaworld_grpo_mlp"))["exactness"]["streamer"]
    assert (
        said == "approximate (clip_cov chooses within a micro-batch, of which arrival decides who is in it)"
    )


def test_with_all_levels_off_it_says_that_the_update_is_verls():
    facts = explain(composed("async.mode=off"))
    assert set(facts["exactness"].values()) == {"off"}
    assert facts["inference_batch"]["at_most"] == "everybody in flight"
    assert "around veRL's own update" in shown(composed("async.mode=off"))


def test_sizes_of_a_step_are_counted():
    facts = explain(composed())
    assert facts["shards"]["total"] == 2
    assert facts["batch"]["samples_per_step"] == 640
    assert facts["batch"]["optimizer_steps_per_step"] == 4 * 8
    assert "32 trajectories x 20 decisions = 640 samples, 640 env steps" in shown(composed())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.total_epochs=3", "trainer.total_epochs=3 has no effect"),
        ("actor_rollout_ref.rollout.temperature=1.6", "temperature=1.6 has no effect: policies sample"),
        ("actor_rollout_ref.rollout.name=vllm", "rollout.name='vllm' has no effect"),
        ("data.train_files=/nowhere.parquet", "there is no data set"),
        ("critic.ppo_epochs=2", "critic.ppo_epochs=2 has no effect"),
        ("trainer.v1.sampler.max_off_policy_threshold=0", "async.train.max_staleness bounds the age"),
        ("+my.own=3", "nobody reads the section my"),
        ("actor_rollout_ref.actor.shuffle=false", "shuffle=true mixes them"),
        ("vla.inference.ranks=4", "4 inference ranks share 2 shards"),
        ("async.train.proximal=loglinear", "the sampling policies', not recomputed"),
    ],
)
def test_what_a_reader_may_not_expect_is_remarked(override, words):
    assert not any(words in remark for remark in explain(composed())["remarks"])
    assert any(words in remark for remark in explain(composed(override))["remarks"])


def test_evaluation_is_told_when_it_happens():
    assert explain(composed())["evaluation"] == "none"
    told = explain(composed("trainer.test_freq=5", "trainer.val_before_train=true"))["evaluation"]
    assert told == "16 environments, before training and every 5 steps and after the last"


def test_two_configs_are_compared_by_what_they_do():
    found = differences(VerlHost(), composed(), composed("async.mode=off"))
    assert found["facts"]["levels.train"] == {"a": True, "b": False}
    assert found["config"]["async.mode"] == {"a": "full", "b": "off"}


def test_a_cluster_is_named_in_the_config_alone():
    with pytest.raises(ValueError, match=r"set trainer\.nnodes"):
        VerlHost().explain(composed(), AssumedCluster(gpus=8))
