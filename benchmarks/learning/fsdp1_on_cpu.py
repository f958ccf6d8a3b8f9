"""An extension module of RLinf's workers (`RLINF_EXT_MODULE`) that runs FSDP1 without an accelerator.

RLinf gives FSDP1 its device as a number, which torch takes for an accelerator, and lets rank 0 broadcast its
weights between accelerators. On a CPU the device needs its name, and all ranks draw the same weights.
"""

from __future__ import annotations

from typing import Any

import torch
from rlinf.hybrid_engines.fsdp.strategy import fsdp


class OnCpu(fsdp.FSDP):
    """FSDP1 on the CPU, whatever the device argument."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(
            *arguments, **{**keywords, "device_id": torch.device("cpu"), "sync_module_states": False}
        )


def register() -> None:
    """Install the class; RLinf calls this function in every worker."""
    fsdp.FSDP = OnCpu
