"""What `explain` says beyond levels and classes: shards, publication, anchors, determinism."""

import io

import pytest
from rich.console import Console

from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.async_block import read_block
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf import exactness
from rlinf_async.hosts.rlinf.explain import explain, show

PATCH = ("weight_syncer.type=patch", "+weight_syncer.patch={}")


def facts(*overrides: str) -> dict:
    return explain(compose_config("metaworld_ppo_mlp", overrides))


def shown(*overrides: str, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    show(facts(*overrides), console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("overrides", "total", "words"),
    [
        ((), 2, "share the env worker's process"),
        (("async.rollout.shards=4",), 4, "async.rollout.shards"),
        (("rollout.pipeline_stage_num=4",), 4, "rollout.pipeline_stage_num is kept"),
        (("~env.train.processes",), 32, "every metaworld simulator has a process of its own"),
        (("env.train.env_type=maniskill",), 1, "maniskill batches its environments on an accelerator"),
        (("async.mode=train",), 1, "level 2 is off"),
    ],
)
def test_the_number_of_shards_is_explained(overrides, total, words):
    shards = facts(*overrides)["shards"]
    assert shards["total"] == total
    assert words in shards["why"]


@pytest.mark.parametrize("mode", ["full", "train"])
def test_environments_that_must_be_shards_of_their_own_are_explained(mode):
    shards = explain(compose_config("maniskill_ppo_mlp", [f"async.mode={mode}"]))["shards"]
    assert (shards["total"], shards["environments_each"]) == (8, 1)
    assert shards["why"] == "maniskill simulates one environment at a time on the CPU: each is a shard"


RLINFS_OWN = ("env.train.env_class=null", "~env.train.processes", "+env.train.task_suite_name=one")
ONE_BY_ONE = ("async.mode=train", "async.deterministic=true", "env.train.auto_reset=false")


def test_it_says_which_starts_rlinfs_own_metaworld_does_not_make_alike(monkeypatch):
    """`patches/rlinf/0013` has them alike; a test of it shows both."""

    def said(*overrides):
        remarks = explain(compose_config("metaworld_grpo_mlp", overrides))["remarks"]
        return [remark for remark in remarks if "where an episode begins" in remark]

    (groups,) = said(*RLINFS_OWN)
    assert "members of a group (env.train.group_size=8) do not begin alike" in groups
    assert "patches/rlinf/0013" in groups
    assert len(said(*RLINFS_OWN, *ONE_BY_ONE)) == 2
    assert said() == []
    maniskill = ("env.train.env_type=maniskill", "++env.train.init_params={id: PickCube-v1}")
    assert said(*RLINFS_OWN, *maniskill) == []
    monkeypatch.setattr(exactness, "PATCHED_METHOD", "reconfigure_env_fns")  # one that RLinf's has
    assert said(*RLINFS_OWN) == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], True),
        (["async.advanced.shared_group_scene=true"], False),
        (["env.train.group_size=1"], False),
        (["env.train.env_type=maniskill"], False),
    ],
)
def test_it_says_that_members_of_a_group_of_libero_stand_before_other_scenes(overrides, said):
    grpo = ["algorithm.adv_type=grpo", "algorithm.loss_type=actor", "env.train.group_size=2", *overrides]
    cfg = compose_config("libero_object_ppo_vla", grpo)
    remarks = list(exactness.starts_of_their_own(cfg, AsyncConfig.from_mapping(read_block(cfg))))
    assert any("gives a group one scene" in remark for remark in remarks) is said


def test_it_says_how_new_weights_reach_inference():
    assert "beside training" in facts()["publication"]
    assert "beside training" in facts(*PATCH)["publication"]
    assert "publication" not in facts("async.mode=off")


def test_it_says_what_the_death_of_a_process_does():
    assert facts()["deaths"] == "is started again, 5 times in 600 s"
    assert facts("async.survive.process_restarts=0")["deaths"].startswith("ends the run")


def test_it_says_who_listens_and_that_only_who_has_pieces_scored_shows_a_learners_requests():
    learner = "learner ranks: rollouts"
    assert f"{learner}, the data of requests, answers; learner rank 0: new weights; " in shown()
    assert f"{learner}; " in (alone := shown("async.streamer.enabled=false"))
    assert "all but inference ranks also TCP" in alone
    assert "listening" not in shown("async.mode=off")


@pytest.mark.parametrize("proximal", ["recomputed", "loglinear"])
def test_a_reader_learns_what_the_anchor_costs(proximal):
    text = shown(f"async.advanced.proximal={proximal}")
    words = {
        "recomputed": "a pass without gradients over every batch",
        "loglinear": "train/proximal_error",
    }
    assert words[proximal] in text


GPU = {"gpus": 2, "nodes": 1}
NONE = "~cluster.component_placement"
APART = "+cluster.component_placement={env:0-0,rollout:0-0,actor:1-1}"
TOGETHER = "+cluster.component_placement={env:0-1,rollout:0-1,actor:0-1}"


@pytest.mark.parametrize(
    ("overrides", "cluster", "said"),
    [
        ((), {}, "idle inference ranks score samples that the learner has not reached"),
        ((), GPU, "idle inference ranks score"),  # all are on the CPUs of a node
        ((NONE, TOGETHER, "actor.global_batch_size=320"), GPU, "inference shares its accelerators"),
        ((NONE, APART), GPU, "idle inference ranks score"),
        (("rollout.model.precision=bf16",), {}, "it computes in fp32, and inference in bf16"),
        (("rollout.model.precision='32'",), {}, "idle inference ranks score"),
        (("actor.fsdp_config.amp_autocast.enabled=true",), {}, "it computes in bf16, and inference in fp32"),
        (("async.advanced.measure_ratios=false",), {}, "measure whether inference computes the same"),
        (("async.mode=train",), {}, "only with levels 2 and 3"),
        (("async.streamer.enabled=false",), {}, "only with levels 2 and 3"),
        (("async.advanced.proximal=loglinear",), {}, None),
        (("async.train.max_staleness=0",), {}, None),
    ],
)
def test_it_says_in_one_line_who_scores_a_batch(overrides, cluster, said):
    found = explain(compose_config("metaworld_ppo_mlp", list(overrides)), AssumedCluster(**cluster))
    assert (found["scorer"] is None) == (said is None)
    if said is not None:
        assert said in found["scorer"]
        assert "\n" not in found["scorer"]


def test_a_deterministic_run_says_what_it_costs_and_needs():
    settings = ("async.mode=train", "async.deterministic=true")
    assert "the same weights, bit for bit" in shown(*settings)
    assert any("kernels must be deterministic" in remark for remark in facts(*settings)["remarks"])
    assert not any("deterministic" in remark for remark in facts()["remarks"])


def remark(words, *overrides):
    return [each for each in facts(*overrides)["remarks"] if words in each]


def test_of_a_loss_without_values_nothing_is_said_of_values():
    stored = "values and advantages are computed by the policies that sampled"
    biased = ("async.train.correction=none", "+async.advanced.accept_bias=true")
    assert remark(stored, *biased)
    assert not remark(stored, *biased, "algorithm.loss_type=embodied_nft", "algorithm.adv_type=raw")


def test_a_level_that_has_nothing_to_do_says_so():
    (waits,) = remark("level 3")  # eight update epochs: normalisation is deferred
    assert "level 3 streams the anchor and its values, for up to 1 of 2 pieces" in waits
    assert "with normalisation deferred gradients wait for the whole batch" in waits
    assert "async.advanced.normalization=running streams them" in waits
    assert remark("level 3 streams nothing", "async.mode=streamer", "async.rollout.enabled=true")
    assert remark("level 3 does nothing: all samples", "async.rollout.shards=1")
    assert not remark("level 3", "async.advanced.normalization=running")
    assert not remark("level 3", "async.mode=train")
    assert remark("one shard in all", "async.rollout.shards=1")
    apart = ("++cluster.component_placement.env.placement=0:0-1", "async.rollout.shards=1")
    assert remark("one shard per env worker", *apart)
    assert not remark("one shard", "async.mode=train")
    assert not remark("one shard")


def test_several_update_epochs_on_a_simulator_that_is_not_split_gain_what_one_sentence_says():
    vectorised = "env.train.env_type=isaaclab"
    (gain,) = remark("no longer their sum", vectorised)
    assert gain.startswith("isaaclab is not split, and collects the next batch while the learner makes 8 ")
    assert not remark("no longer their sum")
    assert not remark("no longer their sum", vectorised, "algorithm.update_epoch=1")
    assert not remark("no longer their sum", vectorised, "async.train.max_staleness=0")


def test_a_critic_that_rlinf_does_not_train_beside_adapters_is_named():
    lora = ("++actor.model.is_lora=true", "++actor.model.lora_rank=4")
    groups = ("algorithm.group_size=2", "env.train.group_size=2")
    grpo = ("algorithm.adv_type=grpo", "algorithm.loss_type=actor", *groups)
    said = "RLinf does not train the critic of gr00t"
    assert len(remark(said, "actor.model.model_type=gr00t", *lora)) == 1
    assert remark(said, "actor.model.model_type=gr00t") == []
    assert remark(said, "actor.model.model_type=openvla_oft", *lora) == []
    assert remark(said, "actor.model.model_type=gr00t", *lora, *grpo) == []


def test_parts_that_are_placed_together_share_the_compute_and_it_says_which():
    (all_three,) = remark("placed together")
    assert all_three.startswith("learner, inference and environments")
    assert not remark("placed together", "async.mode=rollout")
    places = [
        f"cluster.component_placement.{name}.placement={rank}" for rank, name in enumerate(("env", "rollout"))
    ]
    (two,) = remark("placed together", *places)
    assert two.startswith("learner and environments")


def test_captured_graphs_have_one_size_to_which_batches_are_padded():
    found = facts("rollout.enable_cuda_graph=true")
    assert found["inference_batch"]["padded_to"] == [32]
    assert any("captured for batches of 32" in each for each in found["remarks"])


OPENVLA_KEYS = (
    *("attn_implementation", "hidden_size", "low_cpu_mem_usage"),
    *("max_prompt_length", "trust_remote_code", "unnorm_key"),
)


def test_what_gives_way_is_shown_with_its_reason():
    given = (
        "actor.enable_offload=true",
        "actor.model.model_type=openvla",
        "+rollout.sampling_params={top_k: 50}",
        *(f"+actor.model.{name}=1" for name in OPENVLA_KEYS),
    )
    found = facts(*given)
    assert found["levels"] == {"train": False, "rollout": True, "streamer": True}
    assert [change["key"] for change in found["changes"]] == ["actor.enable_offload"]
    text = " ".join(shown(*given).split())
    assert "off: it does not support rollout.sampling_params.top_k=50" in text
    assert "actor.enable_offload=false" in text


ASYNC_PPO = (
    "algorithm.loss_type=decoupled_actor_critic",
    "+algorithm.staleness_threshold=3",
    "+algorithm.behave_weight_threshold=2.5",
    "+algorithm.rollout_store_size_per_rank=2",
)


def test_rlinfs_own_asynchronous_keys_are_shown_with_what_they_become():
    said = facts(*ASYNC_PPO)
    assert (said["max_staleness"], said["correction"], said["max_weight"]) == (3, "tis", 2.5)
    text = shown(*ASYNC_PPO)
    assert "algorithm.staleness_threshold=3 -> async.train.max_staleness=3" in text
    assert "algorithm.rollout_store_size_per_rank=2 has no effect here" in text
    assert "async.advanced.proximal=loglinear interpolates" in text
    assert facts()["translated"] == []
    assert facts(*ASYNC_PPO, "async.mode=rollout")["translated"] == []


def test_a_table_of_eighty_columns_leaves_most_of_them_to_what_is_said():
    lines = shown(width=80).splitlines()
    assert {len(line) for line in lines[1:]} == {80}
    assert "EnvWorker -> ShardedEnvWorker (rlinf_async)" in shown(width=80)
    first = next(line for line in lines if "levels" in line)
    assert first.index("train, rollout, streamer") < 30


def test_a_placement_beyond_the_assumed_cluster_is_a_note():
    beyond = ("cluster.component_placement.env.placement=0-3", "cluster.num_nodes=2")
    assert any("rank 3 is beyond the 2" in remark for remark in facts(*beyond)["remarks"])
    assert not any("beyond" in remark for remark in facts()["remarks"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "++runner.resume_dir=nowhere",
            "a run would not begin on this machine: runner.resume_dir='nowhere' must end",
        ),
        (
            "++runner.ckpt_path=nowhere.pt",
            "a run would not begin on this machine: runner.ckpt_path=nowhere.pt does not",
        ),
        ("++runner.only_eval=true", "the async block has no effect: runner.only_eval=true"),
        ("+algorithm.rollout_epoch=3", "algorithm.rollout_epoch=3 has no effect"),
        ("async.mode=lean async.train.max_staleness=3", "async.train.max_staleness=3 has no effect"),
        ("async.mode=off async.train.max_staleness=3", "async.train.max_staleness=3 has no effect"),
        ("async.mode=off runner.task_type=sft", "runner.task_type='sft' is none of embodied, embodied_eval"),
    ],
)
def test_it_says_what_a_run_would_refuse_or_not_heed(override, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert any(remark.startswith(said) for remark in facts(*override.split())["remarks"])


def test_a_task_of_another_script_is_refused_as_the_run_refuses_it():
    with pytest.raises(
        ValueError, match="task_type='sft' is none of embodied, embodied_eval, which rlinf-async"
    ):
        facts("runner.task_type=sft")
