"""Checks of GPUs: their use by torch, their free memory, and NCCL."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.observe.check import Check, skipped
from rlinf_async.observe.probes import output_of

GIB_BYTES = 1 << 30
DRIVER_FILE = Path("/proc/driver/nvidia/version")
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
MIN_FREE_SHARE = 0.9
"""Share of a GPU's memory; with less than that free, another process uses it."""

GPU_PROBE = """
import json, torch
found = {"build": torch.version.cuda or torch.version.hip, "gpus": [], "why": ""}
try:
    torch.cuda.init()
except (RuntimeError, AssertionError) as error:
    found["why"] = str(error).splitlines()[0]
for index in range(torch.cuda.device_count() if not found["why"] else 0):
    torch.ones(1, device=f"cuda:{index}").add_(1).item()
    found["gpus"].append([torch.cuda.get_device_name(index), *torch.cuda.mem_get_info(index)])
print(json.dumps(found))
"""
"""Computes on every GPU; prints the CUDA or ROCm of torch, the GPUs, or the reason for having none."""

NCCL_PROBE = """
import torch
numbers = [torch.ones(1, device=f"cuda:{index}") for index in range(torch.cuda.device_count())]
torch.cuda.nccl.all_reduce(numbers)
if numbers[-1].item() != len(numbers):  # no `assert`, which PYTHONOPTIMIZE would leave out
    raise AssertionError(f"a sum of {len(numbers)} ones gave {numbers[-1].item()}")
print(".".join(map(str, torch.cuda.nccl.version())))
"""
"""Adds one number of every GPU, and prints the version of NCCL."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs as torch sees them."""

    build: str | None
    """The CUDA or ROCm that torch was built for."""
    gpus: tuple[tuple[str, int, int], ...]
    """Name, free bytes and all bytes of each."""
    why: str = ""
    """Why there is no GPU."""

    @classmethod
    def found(cls) -> Gpus:
        """Probe in a subprocess; if it fails, there are no GPUs, and `why` has its failure."""
        output, failure = output_of(GPU_PROBE, ground=["import torch"])
        if failure is not None:
            return cls(None, (), failure)
        facts = json.loads(output)
        return cls(facts["build"], tuple(map(tuple, facts["gpus"])), facts["why"])


def driver(path: Path = DRIVER_FILE) -> str | None:
    """The version of NVIDIA's driver; None if none is loaded."""
    if not path.is_file():
        return None
    words = path.read_text().splitlines()[0].split()
    # NVIDIA's open kernel modules have more words before the number than the proprietary ones.
    return next((word for word in words if word[0].isdigit() and "." in word), "of unknown version")


def check_gpu(gpus: Gpus, *, driver: str | None, environ: Mapping[str, str] = os.environ) -> Check:
    """Check that torch computes on the GPUs of this machine, and that they are free."""
    if not gpus.gpus and driver is None:
        return Check("gpu", "ok", "none here: runs use the CPU")
    if not gpus.gpus:
        detail = f"NVIDIA driver {driver}, and torch uses no GPU: {gpus.why or 'it sees none'}"
        return Check("gpu", "fail", detail, _remedy(gpus, environ))
    kinds = sorted({name for name, *_ in gpus.gpus})
    detail = f"{len(gpus.gpus)} x {', '.join(kinds)}; torch for {gpus.build}, driver {driver or 'unknown'}"
    busy = [
        f"GPU {index} has {free / GIB_BYTES:.0f} of {total / GIB_BYTES:.0f} GiB free"
        for index, (_, free, total) in enumerate(gpus.gpus)
        if free < MIN_FREE_SHARE * total
    ]
    if busy:
        return Check("gpu", "warn", f"{detail}; {', '.join(busy)}", "nvidia-smi names the processes on them")
    return Check("gpu", "ok", detail)


def _remedy(gpus: Gpus, environ: Mapping[str, str]) -> str:
    # An empty value hides all GPUs; an unset variable hides none.
    if environ.get(VISIBLE_VARIABLE, "0") in ("", "-1"):
        return f"unset {VISIBLE_VARIABLE}, which hides them"
    if gpus.build is None:
        return "install the torch that is built for this driver: docs/install.md, torch for a GPU"
    return "nvidia-smi; a driver that is older than torch's CUDA needs an older torch, or an update"


def check_nccl(gpus: Gpus, code: str = NCCL_PROBE) -> Check:
    """Check that NCCL adds correctly over all GPUs of this machine, as in every optimizer step."""
    if not gpus.gpus:
        return skipped("nccl", "no GPU")
    number, failure = output_of(code, ground=["import torch"])
    if failure is not None:
        remedy = "NCCL_DEBUG=INFO says more; in a container, start it with --ipc=host or a larger --shm-size"
        return Check("nccl", "fail", failure, remedy)
    return Check("nccl", "ok", f"{number.strip()} adds up over {len(gpus.gpus)} GPU(s)")
