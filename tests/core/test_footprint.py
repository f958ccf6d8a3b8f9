"""The arithmetic of memory, against cases worked out by hand."""

from dataclasses import replace

import pytest

from rlinf_async.core.footprint import LearnerFootprint, accelerator_bytes, peak

BILLION = 10**9
ALONE = LearnerFootprint(
    parameters=BILLION,
    trainable=BILLION,
    stored=4,
    computed=4,
    ranks=1,
    strategy="full_shard",
    accumulates=False,
)


def gigabytes(footprint):
    return {name: size / BILLION for name, size in footprint.parts().items()}


def test_one_rank_keeps_everything_in_16_bytes_per_parameter():
    assert gigabytes(ALONE) == {"weights": 4, "gradients": 4, "optimizer": 8}
    assert sum(gigabytes(ALONE).values()) == 16


@pytest.mark.parametrize("computed", [4, 2])
def test_full_shard_divides_everything_by_the_ranks_and_keeps_no_copy_of_all_weights(computed):
    shared = gigabytes(replace(ALONE, ranks=8, computed=computed))
    assert shared == {"weights": 0.5, "gradients": 0.5, "optimizer": 1}


def test_no_shard_is_the_same_on_any_number_of_ranks_and_mixed_precision_adds_a_copy():
    none = replace(ALONE, ranks=8, strategy="no_shard")
    assert gigabytes(none) == gigabytes(ALONE)
    assert gigabytes(replace(none, computed=2))["weights"] == 4 + 2
    assert gigabytes(replace(ALONE, computed=2))["weights"] == 4 + 2


def test_shard_grad_op_has_all_weights_beside_its_share_while_it_trains():
    assert gigabytes(replace(ALONE, ranks=4, computed=2, strategy="shard_grad_op")) == {
        "weights": 1 + 2,
        "gradients": 1,
        "optimizer": 2,
    }


def test_gradients_that_are_summed_before_they_are_shared_are_whole_on_every_rank():
    summed = replace(ALONE, ranks=8, computed=2, accumulates=True)
    assert gigabytes(summed)["gradients"] == 0.5 + 2
    assert gigabytes(replace(summed, strategy="no_shard"))["gradients"] == 4
    assert gigabytes(replace(summed, ranks=1))["gradients"] == 4


def test_frozen_weights_have_neither_gradients_nor_moments():
    assert gigabytes(replace(ALONE, trainable=BILLION // 4)) == {"weights": 4, "gradients": 1, "optimizer": 2}


def test_what_stays_on_the_cpu_takes_nothing():
    assert set(replace(ALONE, ranks=8, on_cpu=True).parts().values()) == {0}


def test_shares_are_rounded_up():
    odd = replace(ALONE, parameters=3, trainable=3, ranks=2)
    assert odd.parts() == {"weights": 6, "gradients": 6, "optimizer": 12}
    assert replace(odd, stored=1, computed=1).parts() == {"weights": 2, "gradients": 2, "optimizer": 4}


def test_bfloat16_on_one_gpu_with_an_inference_copy():
    half = replace(ALONE, stored=2, computed=2)
    assert accelerator_bytes(half.parts(), 2 * BILLION, learners=1, policies=1) == {
        "weights": 2 * BILLION,
        "gradients": 2 * BILLION,
        "optimizer": 4 * BILLION,
        "inference": 2 * BILLION,
    }


def test_an_accelerator_takes_what_is_placed_on_it():
    parts = ALONE.parts()
    assert accelerator_bytes(parts, 7, learners=0, policies=2) == {"inference": 14}
    assert accelerator_bytes(parts, 7, learners=2, policies=0) == {
        name: 2 * size for name, size in parts.items()
    }
    assert accelerator_bytes(parts, 7, learners=0, policies=0) == {}


@pytest.mark.parametrize(
    ("learner_leaves", "inference_leaves", "most"),
    [(False, False, 19), (True, False, 19), (False, True, 19), (True, True, 16)],
)
def test_only_if_both_leave_for_each_other_is_the_larger_enough(learner_leaves, inference_leaves, most):
    parts = {"weights": 4, "gradients": 4, "optimizer": 8, "inference": 3}
    assert peak(parts, learner_leaves=learner_leaves, inference_leaves=inference_leaves) == most
    assert peak({"inference": 3}, learner_leaves=learner_leaves, inference_leaves=inference_leaves) == 3


@pytest.mark.parametrize(
    ("change", "words"), [({"ranks": 0}, "ranks=0"), ({"strategy": "zero"}, "full_shard, ")]
)
def test_what_cannot_be_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(ALONE, **change)


@pytest.mark.parametrize("leave", [False, True])
def test_the_most_of_one_part_is_that_part_whoever_leaves(leave):
    for parts in ({"weights": 4, "gradients": 3}, {"inference": 7}):
        assert peak(parts, learner_leaves=leave, inference_leaves=leave) == 7
