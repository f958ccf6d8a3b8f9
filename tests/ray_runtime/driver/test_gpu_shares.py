"""Shares of GPUs as the driver sees them: what it says of limits, of a lack of memory, and of simulators."""

from types import SimpleNamespace

import pytest
import torch

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.core.gpu_shares import SharedGpu
from rlinf_async.observe.ending import ending_of
from rlinf_async.observe.events import Ending
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.ray_runtime.driver.gpu_shares import GpuShares
from rlinf_async.ray_runtime.processes.gpu_share import KeptShare

GB = 10**9
LEARNER = "learner rank {}"
INFERENCE = "inference rank {}"
LIMITED = """CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 74.51 GiB of \
which 30.21 GiB is free. Including non-PyTorch memory, this process has 16.10 GiB memory in use. 15.83 GiB \
allowed; Of the allocated memory 14.90 GiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch."""
"""torch's words where the fraction of a process stops it."""
FULL = """CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 74.51 GiB of \
which 3.62 MiB is free. Process 12 has 40.00 GiB memory in use. Including non-PyTorch memory, this process \
has 9.10 GiB memory in use. 15.83 GiB allowed; Of the allocated memory 8.20 GiB is allocated by PyTorch."""
"""torch's words where other processes have filled the device."""


def gpu(number):
    return SharedGpu(
        name=f"GPU {number}",
        learners=(number,),
        inference=(number,),
        others=(f"env worker {2 * number}", f"env worker {2 * number + 1}"),
        learner_bytes=16 * GB,
        inference_bytes=2 * GB,
    )


class Given:
    """GPUs of 80 GB, whose processes answer at once."""

    def __init__(self, path, *, gpus=2, total=80 * GB, stands_in=False):
        self.said, self.path, self.stands_in, self.total = [], path, stands_in, total
        self.calls = []
        actors = {name: [self.actor(name, rank) for rank in range(gpus)] for name in ("learner", "inference")}
        fleet = SimpleNamespace(actors=actors.__getitem__, wait=lambda calls, purpose: list(calls))
        shared = [gpu(number) for number in range(gpus)]
        self.shares = GpuShares(fleet, shared, run_dir=path, say=self.said.append)

    def actor(self, group, rank):
        def remote(shared, given):
            self.calls.append((group, rank, shared.name, given))
            shares = shared.divide(self.total)
            if shares is None:
                return None
            own = shares.learner if given == "learner" else shares.inference
            return KeptShare(bytes=own, total=self.total, others=shares.others, stands_in=self.stands_in)

        return SimpleNamespace(keep_to_share=SimpleNamespace(remote=remote))

    def answers(self, *, used, reserved=10 * GB, silent=()):
        use = {"total": self.total, "used": used, "reserved": reserved}
        names = [form.format(rank) for rank in range(2) for form in (LEARNER, INFERENCE)]
        found = {name: {"gpu": use} for name in names if name not in silent}
        return {**found, **dict.fromkeys(silent), "env worker 0": {}}


@pytest.fixture
def given(tmp_path):
    made = Given(tmp_path)
    made.shares.set_limits()
    return made


def test_every_process_is_limited_before_models_are_built_and_gpus_alike_are_said_once(given):
    assert given.calls == [
        (group, rank, f"GPU {rank}", group) for rank in range(2) for group in ("learner", "inference")
    ]
    assert given.said == [
        "async.advanced.gpu_shares: each of 2 GPUs of 80 GB: at most learner rank 46 GB, inference rank 17 "
        "GB; 15 GB left to other processes"
    ]


def test_a_process_that_is_started_again_is_limited_again_and_one_without_company_is_not(given):
    given.calls.clear()
    given.shares.limit("inference", 1, given.actor("inference", 1))
    assert given.calls == [("inference", 1, "GPU 1", "inference")]
    assert given.shares.limit("env", 0, None) is None
    assert given.shares.limit("inference", 7, None) is None


def test_what_stands_in_for_a_gpu_is_said(tmp_path):
    made = Given(tmp_path, gpus=1, stands_in=True)
    made.shares.set_limits()
    assert made.said[0].startswith("async.advanced.gpu_shares: a GPU of 80 GB: at most learner rank 46 GB")
    assert made.said[0].endswith(
        "(no GPU is here: this machine's memory stands in for one, and limits nothing)"
    )


def test_estimates_that_do_not_fit_are_said_and_change_no_ending(tmp_path):
    made = Given(tmp_path, total=20 * GB)
    made.shares.set_limits()
    assert made.said == [
        "async.advanced.gpu_shares: each of 2 GPUs has no limits, as the estimates of its processes do not "
        "fit"
    ]
    ending = ending_in(torch.OutOfMemoryError(LIMITED), LEARNER.format(0))
    assert made.shares.told(ending, torch.OutOfMemoryError(LIMITED), again="start again") is ending
    made.shares.look(made.answers(used=79 * GB))
    assert len(made.said) == 1


def ending_in(error, process):
    """The ending of a process, as `endings` makes it of the error of a worker."""
    found = ending_of(error, again="start again")
    return Ending(
        **{**vars(found), "who": f"{process} (12 on 10.0.0.1)", "process": process},
    )


def test_a_learner_beyond_its_share_is_named_with_share_estimate_and_remedy(given):
    error = torch.OutOfMemoryError(LIMITED)
    told = given.shares.told(ending_in(error, LEARNER.format(1)), error, again="start again")
    assert str(told).startswith(
        "learner rank 1 (12 on 10.0.0.1) has no memory left on its accelerator (CUDA out of memory. Tried to"
    )
    assert told.why.endswith(
        ": it needs more than its share of GPU 1, 46 GB of 80 GB (estimated without activations: 16 GB)"
    )
    assert told.what_next == (
        "use smaller micro-batches, or async.advanced.gpu_shares=false for no limit, and start again"
    )


def test_inference_beyond_its_share_is_told_to_use_smaller_batches(given):
    error = PolicyFailure(
        f"the policy has failed on inference rank 0: OutOfMemoryError: {LIMITED}", kind="OutOfMemoryError"
    )
    told = given.shares.told(ending_in(error, INFERENCE.format(0)), error, again="start again")
    assert (
        "it needs more than its share of GPU 0, 17 GB of 80 GB (estimated without activations: 2 GB)"
        in told.why
    )
    assert told.what_next.startswith("use smaller batches (async.rollout.max_batch_size), or")


def test_a_gpu_that_others_have_filled_is_told_with_what_they_hold(given):
    error = torch.OutOfMemoryError(FULL)
    ending = ending_in(error, INFERENCE.format(0))
    told = given.shares.told(ending, error, again="start again")
    assert "GPU 0 is full, and the process is within its share of GPU 0, 17 GB of 80 GB" in told.why
    assert told.why.endswith("; 15 GB are left to env worker 0 and env worker 1")
    # 79 used, less 10 and a context of each of two processes.
    given.shares.look(given.answers(used=79 * GB))
    told = given.shares.told(ending, error, again="start again")
    assert told.why.endswith("; env worker 0 and env worker 1 held about 57 GB, and 15 GB are left to them")
    assert told.what_next == "use fewer environments, or place fewer processes on GPU 0, and start again"


@pytest.mark.parametrize(
    ("error", "process"),
    [
        (ArithmeticError(LIMITED), LEARNER.format(0)),
        (torch.OutOfMemoryError(LIMITED), "env worker 0"),
        (torch.OutOfMemoryError(LIMITED), LEARNER.format(7)),
    ],
    ids=["another error", "no limit", "no company"],
)
def test_other_endings_stay_as_they_are(given, error, process):
    ending = ending_in(error, process)
    assert given.shares.told(ending, error, again="start again") is ending


def test_simulators_that_hold_more_than_is_left_are_named_once(given):
    within = 15 * GB + 2 * 11 * GB
    given.shares.look(given.answers(used=within))
    assert len(given.said) == 1
    for _ in range(3):
        given.shares.look(given.answers(used=within + GB))
    sentences = [
        f"env worker {2 * number} and env worker {2 * number + 1}, with simulators, hold about 16 GB of GPU "
        f"{number}, where 15 GB are left to them beside learner rank {number} and inference rank {number} "
        "(async.advanced.gpu_shares): use fewer environments, or place simulators on other GPUs"
        for number in range(2)
    ]
    assert given.said[1:] == sentences
    faults = [(fault.process, fault.what, fault.error) for fault in read_faults(given.path)]
    assert faults == [(f"env worker {2 * number}", "runs out", sentences[number]) for number in range(2)]


def test_nobody_is_blamed_while_a_process_has_not_answered(given):
    silent = [INFERENCE.format(rank) for rank in range(2)]
    given.shares.look(given.answers(used=79 * GB, silent=silent))
    assert len(given.said) == 1
