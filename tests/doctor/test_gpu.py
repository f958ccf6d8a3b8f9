"""What the doctor says of GPUs: there, taken, hidden, unusable; and of NCCL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf_async.doctor import gpu
from rlinf_async.doctor.gpu import Gpus

GIB = 1 << 30
H100 = ("NVIDIA H100 80GB HBM3", 78 * GIB, 79 * GIB)
EIGHT = Gpus("12.4", (H100,) * 8)


def test_a_machine_without_a_gpu_is_fine():
    assert gpu.check_gpu(Gpus("12.4", ()), driver=None).status == "ok"


def test_gpus_are_counted_and_named_with_what_torch_was_built_for():
    found = gpu.check_gpu(EIGHT, driver="550.54.15")
    assert (found.status, found.detail) == (
        "ok",
        "8 x NVIDIA H100 80GB HBM3; torch for 12.4, driver 550.54.15",
    )


def test_a_gpu_that_somebody_else_uses_is_warned_of_by_its_number():
    taken = Gpus("12.4", (H100, ("NVIDIA H100 80GB HBM3", 12 * GIB, 79 * GIB)))
    found = gpu.check_gpu(taken, driver="550.54.15")
    assert found.status == "warn"
    assert "GPU 1 has 12 of 79 GiB free" in found.detail
    assert "GPU 0" not in found.detail


@pytest.mark.parametrize(
    ("found", "environ", "remedy"),
    [
        (Gpus(None, (), "Torch not compiled with CUDA enabled"), {}, "torch that is built for this driver"),
        (
            Gpus("12.4", (), "no CUDA GPUs are available"),
            {gpu.VISIBLE_VARIABLE: ""},
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (Gpus("13.0", (), "The NVIDIA driver on your system is too old"), {}, "older torch"),
    ],
)
def test_gpus_that_torch_does_not_use_fail_with_the_reason_and_its_remedy(found, environ, remedy):
    check = gpu.check_gpu(found, driver="535.1", environ=environ)
    assert check.status == "fail"
    assert found.why in check.detail
    assert remedy in check.mend


def test_the_driver_is_read_from_what_its_module_says(tmp_path: Path):
    said = tmp_path / "version"
    assert gpu.driver(said) is None
    said.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    )
    assert gpu.driver(said) == "550.54.15"
    said.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (builder)\n"
    )
    assert gpu.driver(said) == "570.86.10"


def test_nccl_is_judged_by_a_sum_and_left_alone_without_a_gpu():
    assert gpu.check_nccl(Gpus("12.4", ())).status == "skip"
    assert gpu.check_nccl(EIGHT, "print('2.21.5')").detail == "2.21.5 adds up over 8 GPU(s)"
    failed = gpu.check_nccl(EIGHT, "raise RuntimeError('NCCL Error 2: unhandled system error')")
    assert failed.status == "fail"
    assert "unhandled system error" in failed.detail


def test_what_torch_sees_is_asked_in_a_process_whose_end_is_an_answer_too(monkeypatch):
    found = {"build": "12.4", "gpus": [list(H100)], "why": ""}
    monkeypatch.setattr(gpu, "GPU_PROBE", f"print({json.dumps(json.dumps(found))})")
    assert Gpus.found() == Gpus("12.4", (H100,))
    monkeypatch.setattr(gpu, "GPU_PROBE", "import os; os._exit(11)")
    assert Gpus.found() == Gpus(None, (), "exit status 11")
