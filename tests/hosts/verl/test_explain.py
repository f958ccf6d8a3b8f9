"""What `explain` says of a config, as data and for a reader."""

import io

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console

from rlinf_async.cli.looking import differences
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.verl.checkpoint import note_latest
from rlinf_async.hosts.verl.explain import explain, show
from rlinf_async.hosts.verl.host import VerlHost
from rlinf_async.lab.demo.policies.mlp import build_gaussian_mlp
from tests.hosts.verl.configs import composed


def shown(config, **cluster):
    console = Console(file=io.StringIO(), width=200)
    show(explain(config, AssumedCluster(**cluster)), console)
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
        said
        == "approximate (clip_cov selects within a micro-batch, and the order of arrival decides its samples)"
    )


def test_with_all_levels_off_it_says_that_the_update_is_verls():
    facts = explain(composed("async.mode=off"))
    assert set(facts["exactness"].values()) == {"off"}
    assert facts["inference_batch"]["at_most"] == "everybody in flight"
    assert "around veRL's own update" in shown(composed("async.mode=off"))


@pytest.mark.parametrize("name", ["param_offload", "optimizer_offload", "offload_policy"])
def test_offloading_gives_way_and_is_said(name):
    key = f"actor_rollout_ref.actor.fsdp_config.{name}"
    config = composed(f"{key}=true")
    assert not explain(composed())["changes"]
    assert [change["key"] for change in explain(config)["changes"]] == [key]
    assert f"{key}=false: the learner works while rollouts go on" in shown(config)
    assert OmegaConf.select(OmegaConf.create(VerlHost().resolved(config)), key) is False


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
        ("actor_rollout_ref.rollout.temperature=1.6", "temperature=1.6 has no effect here: vla.model sets"),
        ("actor_rollout_ref.rollout.name=vllm", "rollout.name='vllm' has no effect"),
        ("data.train_files=/dev/null/nowhere.parquet", "there is no data set"),
        ("critic.ppo_epochs=2", "critic.ppo_epochs=2 has no effect"),
        ("trainer.v1.sampler.max_off_policy_threshold=0", "async.train.max_staleness bounds the age"),
        ("actor_rollout_ref.model.external_lib=mine", "vla.model sets the policy"),
        ("actor_rollout_ref.actor.fsdp_config.entropy_checkpointing=true", "not sequences of tokens"),
        ("reward.custom_reward_function.path=/my.py", "rewards come from the environments"),
        ("trainer.resume_from_path=/mine", "has no effect: trainer.resume_mode="),
        (
            "+env.train.num_envs=2",
            "the run uses env.train.total_num_envs=32",
        ),
        ("+my.own=3", "my is a block of this config's own, which veRL does not read"),
        ("actor_rollout_ref.actor.shuffle=false", "shuffle=true mixes them"),
        ("vla.inference.ranks=4", "4 inference ranks share 2 shards"),
        ("async.advanced.proximal=loglinear", "by the policies that sampled, and are not recomputed"),
    ],
)
def test_what_a_reader_may_not_expect_is_remarked(override, words):
    assert not any(words in remark for remark in explain(composed())["remarks"])
    assert any(words in remark for remark in explain(composed(override))["remarks"])


def test_it_says_who_listens():
    told = " ".join(shown(composed()).split())
    assert "the request channel: requests; the coordinator: " in told


def test_evaluation_is_told_when_it_happens():
    assert explain(composed())["evaluation"] == "none"
    told = explain(composed("trainer.test_freq=5", "trainer.val_before_train=true"))["evaluation"]
    assert told == "16 environments, before training and every 5 steps and after the last"


def test_two_configs_are_compared_by_what_they_do():
    found = differences(VerlHost(), composed(), composed("async.mode=off"))
    assert found["facts"]["levels.train"] == {"a": True, "b": False}
    assert found["config"]["async.mode"] == {"a": "full", "b": "off"}


def test_it_says_where_a_run_begins(tmp_path):
    place = f"trainer.default_local_dir={tmp_path}"
    assert explain(composed(place, "trainer.resume_mode=disable"))["begins"].startswith("anew")
    config = composed(place, "trainer.resume_mode=auto")
    assert explain(config)["begins"] == f"anew: trainer.resume_mode=auto finds no checkpoint in {tmp_path}"
    (tmp_path / "global_step_4" / "actor").mkdir(parents=True)
    note_latest(config, 4)
    assert f"after step 4, from {tmp_path / 'global_step_4'}" in shown(config)


ON_GPUS = (
    "trainer.device=cuda",
    "trainer.n_gpus_per_node=2",
    "vla.inference.ranks=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=80",
)


def test_memory_of_an_accelerator_is_estimated_where_there_is_one():
    assert explain(composed())["memory"] is None
    config = composed(*ON_GPUS, "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16")
    memory = VerlHost().explain(config, AssumedCluster(gpu_memory=80))["memory"]
    count = memory["parameters"]
    assert count == sum(p.numel() for p in build_gaussian_mlp(config.vla.model, torch.float32).parameters())
    learner, inference = memory["per_gpu"]
    half = -(-4 * count // 2)  # the rank's half of float32 weights, and as much of gradients and each moment
    assert learner["gpus"] == 2
    assert learner["bytes"] == {"weights": half, "gradients": half, "optimizer": 2 * half}
    assert inference == {
        "gpus": 1,
        "learner_ranks": 0,
        "inference_ranks": 1,
        "bytes": {"inference": 4 * count},
        "total": 4 * count,
        "fits": True,
    }
    assert "of 80 GB" in shown(config, gpu_memory=80)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"gpus": 8}, "3 of the 8 GPUs of such a cluster are used, by 2 learner ranks"),
        ({"gpus": 2}, "need 3 GPUs, and such a cluster has 2"),
        ({"gpus": 1, "nodes": 4}, "trainer.n_gpus_per_node=2 is beyond nodes with 1 GPUs each"),
    ],
)
def test_a_config_is_held_against_the_cluster_that_it_is_for(cluster, words):
    facts = VerlHost().explain(composed(*ON_GPUS, "trainer.device=cpu"), AssumedCluster(**cluster))
    assert words in " ".join(facts["remarks"])
    assert facts["memory"]["per_gpu"]


def test_a_cluster_of_fewer_nodes_is_too_small():
    config = composed("trainer.nnodes=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=80")
    remarks = set(explain(config, AssumedCluster(nodes=1))["remarks"])
    (remark,) = remarks - set(explain(config, AssumedCluster(nodes=2))["remarks"])
    assert remark == "trainer.nnodes=2 is beyond a cluster of 1 nodes"
