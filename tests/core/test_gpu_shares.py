"""The division of a GPU, against cases worked out by hand."""

import random

import pytest

from rlinf_async.core.gpu_shares import (
    CONTEXT_BYTES,
    LEARNER_PORTIONS,
    GpuUse,
    SharedGpu,
    Shares,
    held_by_others,
)

GB = 10**9


def gpu(*, learners=1, inference=1, others=1, learner_bytes=16 * GB, inference_bytes=2 * GB):
    return SharedGpu(
        name="GPU 0",
        learners=tuple(range(learners)),
        inference=tuple(range(inference)),
        others=tuple(f"env worker {rank}" for rank in range(others)),
        learner_bytes=learner_bytes,
        inference_bytes=inference_bytes,
    )


@pytest.mark.parametrize(
    ("shared", "total", "learner", "inference", "others"),
    [
        # 80 - (16 + 2) - 2 contexts = 60, in portions of 2 + 1 + 1.
        (gpu(), 80, 16 + 30, 2 + 15, 15),
        # Several env workers have one portion together.
        (gpu(others=8), 80, 16 + 30, 2 + 15, 15),
        # Nobody else: 60 in three portions.
        (gpu(others=0), 80, 16 + 40, 2 + 20, 0),
        # Inference beside simulators: 80 - 2 - 1 = 77, in two.
        (gpu(learners=0, inference_bytes=3 * GB), 80, None, 3 + 38, 38),
        # A learner beside simulators, which keeps everything on the CPU: 40 - 1 = 39, in three.
        (gpu(inference=0, learner_bytes=0), 40, 26, None, 13),
        # Two inference ranks on a GPU: 80 - 16 - 4 - 3 = 57, in portions of 2 + 1 + 1 + 1.
        (gpu(inference=2), 80, 16 + 22.8, 2 + 11.4, 11.4),
    ],
)
def test_what_the_estimates_leave_is_divided_into_portions(shared, total, learner, inference, others):
    shares = shared.divide(total * GB)
    found = {"learner": learner, "inference": inference, "others": others}
    for name, expected in found.items():
        if expected is not None:
            assert getattr(shares, name) == pytest.approx(expected * GB), name


def test_nobody_gets_less_than_its_estimate_and_nothing_is_given_twice():
    draw = random.Random(0)
    for _ in range(500):
        learners, inference, others = draw.randint(0, 3), draw.randint(0, 3), draw.randint(0, 3)
        if not learners + inference or learners + inference + others < 2:
            continue
        sizes = {f"{name}_bytes": draw.randint(0, 20 * GB) for name in ("learner", "inference")}
        shared, total = gpu(learners=learners, inference=inference, others=others, **sizes), 80 * GB
        shares = shared.divide(total)
        needed = learners * sizes["learner_bytes"] + inference * sizes["inference_bytes"]
        needed += (learners + inference) * CONTEXT_BYTES
        if shares is None:
            assert total < needed + 10
            continue
        given = learners * shares.learner + inference * shares.inference + shares.others
        left = total - (learners + inference) * CONTEXT_BYTES - given
        assert 0 <= left < LEARNER_PORTIONS * learners + inference + 1
        assert shares.learner >= sizes["learner_bytes"]
        assert shares.inference >= sizes["inference_bytes"]


def test_estimates_that_do_not_fit_set_no_limit():
    # 16 + 2 and two contexts are 20.
    assert gpu().divide(20 * GB) is None
    assert gpu().divide(20 * GB + 4) == Shares(learner=16 * GB + 2, inference=2 * GB + 1, others=1)
    assert gpu().in_words(20 * GB) == "no limits, as the estimates do not fit"


def test_a_division_in_words():
    assert gpu().in_words(80 * GB) == (
        "at most learner rank 46 GB, inference rank 17 GB; 15 GB left to other processes"
    )
    assert (
        gpu(learners=0, inference=2, others=0).in_words(80 * GB) == "at most each of 2 inference ranks 39 GB"
    )


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 1, 0), (0, 0, 2)])
def test_a_gpu_with_one_process_or_without_a_model_is_refused(counts):
    learners, inference, others = counts
    with pytest.raises(ValueError, match="must be at least two processes"):
        gpu(learners=learners, inference=inference, others=others)


def test_others_hold_what_torch_and_the_contexts_do_not():
    first = GpuUse(total=80 * GB, used=50 * GB, reserved=20 * GB)
    later = GpuUse(total=80 * GB, used=52 * GB, reserved=10 * GB)
    assert held_by_others({"learner rank 0": first, "inference rank 0": later}) == 50 * GB - 30 * GB - 2 * GB
    assert held_by_others({"learner rank 0": GpuUse(total=80 * GB, used=GB // 2, reserved=0)}) == 0
    with pytest.raises(ValueError, match="at least one process"):
        held_by_others({})
