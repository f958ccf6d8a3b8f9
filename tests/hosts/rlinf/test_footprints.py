"""What `explain` says about memory: what is read of a config, a checkpoint and a placement."""

import json

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.gpu_shares import GIGABYTE
from rlinf_async.hosts.footprints import rows
from rlinf_async.hosts.rlinf.footprints import footprints, model_size
from rlinf_async.hosts.rlinf.placement import Machines, world_sizes
from rlinf_async.hosts.rlinf.settings import read_settings
from tests.hosts.rlinf.given import config

BILLION = 10**9
FULL_SHARD = {"strategy": "fsdp", "sharding_strategy": "full_shard", "enable_gradient_accumulation": False}
VLA = {
    "actor.model.model_type": "openpi",
    "actor.model.model_path": "/path/to/model",
    "actor.model.precision": "bf16",
    "rollout.model": {"precision": "bf16"},
    "actor.fsdp_config": FULL_SHARD,
    "env.train.total_num_envs": 64,
    "actor.global_batch_size": 256,
}


def memory(changes=None, *, gpus=8, mode="full", **options):
    together = {"cluster.component_placement": {"actor,env,rollout": "all"}}
    cfg = config({**VLA, **together, "async.mode": mode, **(changes or {})})
    machines = Machines(nodes=1, gpus=gpus)
    sizes = world_sizes(cfg["cluster"], machines)
    settings = read_settings(cfg, AsyncConfig.from_mapping(cfg["async"]), sizes)
    return footprints(cfg, settings, machines, **options)


def gigabytes(kind):
    return {name: size / BILLION for name, size in kind["bytes"].items()}


def test_without_a_checkpoint_it_says_so_and_counts_per_billion_parameters():
    found = memory()
    assert found["parameters"] is None
    assert "per billion" in found["parameters_from"]
    (kind,) = found["per_gpu"]
    assert (kind["gpus"], kind["learner_ranks"], kind["inference_ranks"]) == (8, 1, 1)
    assert gigabytes(kind) == {"weights": 0.25, "gradients": 0.25, "optimizer": 0.5, "inference": 2}
    assert kind["fits"] is None
    row, shared, *_ = rows(memory(gpu_memory=30))[1:-1]
    assert shared == ("  shared, a node", "new weights on their way: 4 GB per billion parameters")
    assert row[1].endswith("3 GB per billion parameters of 30 GB, which 10 billion parameters fill")


@pytest.mark.parametrize(
    ("train", "batches", "each", "gigabytes_per_mb"),
    [
        # 64 trajectories of 20 steps in chunks of 5, over 8 ranks; values need the last observation, too.
        ({}, 2, 8 * (4 + 1), "0.08"),
        ({"max_staleness": 3}, 4, 8 * (4 + 1), "0.16"),
        ({"enabled": False}, 1, 8 * 4, "0.032"),
    ],
)
def test_rollouts_are_counted_as_observations_of_the_batches_that_may_be_in_memory(
    train, batches, each, gigabytes_per_mb
):
    found = memory({"async.train": train})
    assert found["rollouts"] == {"batches": batches, "inputs": each}
    said = dict(rows(found))["  shared, a learner"]
    assert said.startswith(f"rollouts, {batches} batch")
    assert f": {batches * each:,} observations" in said
    assert said.endswith(f", {gigabytes_per_mb} GB per MB of one")


def test_with_level_2_alone_offloaded_parts_are_counted_in_turn():
    offloaded = {f"{part}.enable_offload": True for part in ("actor", "rollout")}
    totals = {mode: memory(offloaded, mode=mode)["per_gpu"][0]["total"] for mode in ("full", "rollout")}
    assert totals == {"full": 3 * BILLION, "rollout": 2 * BILLION}
    assert rows(memory(offloaded, mode="rollout"))[1][1].endswith("at most at a time")
    assert not rows(memory(offloaded, mode="full"))[1][1].endswith("at most at a time")


def test_a_gpu_that_is_reached_through_two_node_groups_is_one():
    cluster = {
        "node_groups": [{"label": "a800", "node_ranks": 0}],
        "component_placement": {"actor,env": "all", "rollout": {"node_group": "a800", "placement": "all"}},
    }
    (kind,) = memory({"cluster": cluster})["per_gpu"]
    assert (kind["gpus"], kind["learner_ranks"], kind["inference_ranks"]) == (8, 1, 1)


def test_apart_each_gpu_has_its_own_and_the_learner_shards_over_its_ranks():
    places = {"actor": "0-1", "rollout,env": "2-5"}
    learner, inference = memory({"cluster.component_placement": places})["per_gpu"]
    assert (learner["gpus"], gigabytes(learner)) == (2, {"weights": 1, "gradients": 1, "optimizer": 2})
    assert (inference["gpus"], gigabytes(inference)) == (4, {"inference": 2})


@pytest.mark.parametrize(
    ("fsdp", "expected"),
    [
        ({"sharding_strategy": "no_shard"}, {"weights": 2, "gradients": 2, "optimizer": 4}),
        (
            {"mixed_precision": {"param_dtype": "bf16"}, "sharding_strategy": "shard_grad_op"},
            {"weights": 0.25 + 2, "gradients": 0.25, "optimizer": 0.5},
        ),
        ({"strategy": "fsdp2"}, {"weights": 0.25, "gradients": 0.25, "optimizer": 0.5}),
        (
            {"strategy": "fsdp2", "reshard_after_forward": False},
            {"weights": 2.25, "gradients": 0.25, "optimizer": 0.5},
        ),
        ({"enable_gradient_accumulation": True}, {"weights": 0.25, "gradients": 2.25, "optimizer": 0.5}),
        ({"cpu_offload": True}, {"weights": 0, "gradients": 0, "optimizer": 0}),
    ],
)
def test_the_learner_is_counted_as_rlinf_wraps_it(fsdp, expected):
    (kind,) = memory({"actor.fsdp_config": {**FULL_SHARD, **fsdp}})["per_gpu"]
    assert gigabytes(kind) == {**expected, "inference": 2}


@pytest.mark.parametrize(
    "changes",
    [{"actor.model.model_type": "openvla_oft"}, {"actor.model.lora_path": "/path/to/adapters"}],
)
def test_adapters_alone_are_trained_with_lora(changes):
    found = memory({"actor.model.is_lora": True, **changes})
    assert gigabytes(found["per_gpu"][0]) == {"weights": 0.25, "gradients": 0, "optimizer": 0, "inference": 2}
    assert "adapters" in rows(found)[-1][1]


def checkpoint(folder, tensors):
    """A safetensors file by its specification: the length of a header, the header, the data."""
    offset, header = 0, {"__metadata__": {"format": "pt"}}
    for name, (kind, shape, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (folder / "model-00001.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


def test_a_checkpoint_says_how_large_the_model_is_without_being_loaded(tmp_path):
    checkpoint(tmp_path, {"w": ("BF16", [10, 20], 400), "b": ("BF16", [20], 40)})
    found = model_size({"model_type": "openpi", "model_path": str(tmp_path)})
    assert (found.parameters, found.stored) == (220, 2)
    assert str(tmp_path) in found.source
    kind = memory({"actor.model.model_path": str(tmp_path), "actor.model.precision": None})["per_gpu"][0]
    assert kind["bytes"]["inference"] == 440


def test_a_file_that_is_no_checkpoint_is_named_and_not_read_whole(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file: its header"):
        model_size({"model_type": "openpi", "model_path": str(tmp_path)})


def test_pi0_is_counted_as_its_class_casts_it_and_its_vlm_as_frozen(tmp_path):
    """Its checkpoint may be in float32, and its configs say no precision: `precision: null`."""
    vlm, expert = ("paligemma_with_expert." + name for name in ("paligemma.w", "gemma_expert.w"))
    checkpoint(tmp_path, {vlm: ("F32", [10, 20], 800), expert: ("F32", [20], 80)})
    unsaid = {f"{part}.model.precision": None for part in ("actor", "rollout")}
    own = {**unsaid, "actor.model.model_path": str(tmp_path), "actor.fsdp_config": {"strategy": "fsdp2"}}
    whole, expert_only = (
        memory({**own, "actor.model.openpi": {"train_expert_only": only}}, gpus=1)["per_gpu"][0]["bytes"]
        for only in (False, True)
    )
    (adapted,) = memory({**own, "actor.model.is_lora": True}, gpus=1)["per_gpu"]
    assert adapted["bytes"] == expert_only  # RLinf's adapters are the VLM's alone
    assert whole == {"weights": 440, "gradients": 440, "optimizer": 880, "inference": 440}
    assert expert_only == {"weights": 440, "gradients": 40, "optimizer": 80, "inference": 440}
    trained, narrower = (
        memory({**own, "actor.model.openpi": {"train_expert_only": True}, **others}, gpus=1)["sent_bytes"]
        for others in ({}, {"actor.model.model_type": "openvla_oft", "actor.model.precision": "fp32"})
    )
    assert trained == 2 * (2 * 20 + 200)  # in bfloat16: two versions of the expert, and the VLM once
    assert narrower == 4 * 2 * 220
    (unknown,) = memory({**unsaid, "actor.fsdp_config": {"strategy": "fsdp2"}}, gpus=1)["per_gpu"]
    assert gigabytes(unknown) == {"weights": 2, "gradients": 2, "optimizer": 4, "inference": 2}


def test_a_folder_without_weights_says_nothing(tmp_path):
    assert model_size({"model_type": "openpi", "model_path": str(tmp_path)}) is None


def test_a_model_that_needs_no_checkpoint_is_counted_without_memory():
    model = {"model_type": "mlp_policy", "obs_dim": 39, "action_dim": 4, "num_action_chunks": 1}
    from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy

    real = MLPPolicy(39, 4, num_action_chunks=1, add_value_head=True, add_q_head=False)
    found = model_size({**model, "add_value_head": True, "add_q_head": False})
    assert found.parameters == sum(each.numel() for each in real.parameters())
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


@pytest.mark.parametrize(("gigabytes", "fits"), [(1e-9, False), (80, True)])
def test_what_does_not_fit_is_said(tmp_path, gigabytes, fits):
    checkpoint(tmp_path, {"w": ("BF16", [10, 20], 400)})
    found = memory({"actor.model.model_path": str(tmp_path)}, gpu_memory=gigabytes)
    assert found["per_gpu"][0]["fits"] is fits
    text = " ".join(value for _, value in rows(found))
    assert ("not enough" in text) is not fits
    left = gigabytes * GIGABYTE - found["per_gpu"][0]["total"]
    assert (f", which leaves {left / GIGABYTE:.3g} GB" in text) is fits


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({}, 2),
        ({"async.train": {"max_staleness": 3}}, 4),
        ({"async.advanced": {"normalization": "running"}, "actor.global_batch_size": 128}, 2),
        ({"async.advanced": {"measure_ratios": False}}, 0),
        ({"async.mode": "rollout"}, 0),
    ],
)
def test_a_learner_keeps_copies_of_its_shards_of_what_is_trained_on_the_cpu(changes, copies):
    found = memory(changes)
    assert found["remembered"] == copies
    assert found["remembered_bytes"] == copies * 2 * BILLION // 8
    said = [text for name, text in rows(found) if "CPU" in name]
    text = f"{copies} copies of what it trains: {copies / 4:g} GB per billion parameters"
    assert said == ([f"{text}, none of them to measure ratios above 2 GB"] if copies else [])
