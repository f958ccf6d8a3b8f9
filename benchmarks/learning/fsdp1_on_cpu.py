"""RLinf's FSDP1 where there is no accelerator: an extension module of its workers, by `RLINF_EXT_MODULE`.

RLinf names the device of FSDP1 by a number, which torch takes for that of an accelerator, and has rank 0
broadcast its weights between accelerators. On a CPU the device has to be named, and ranks draw the same
weights.
"""

from __future__ import annotations

from typing import Any

import torch
from rlinf.hybrid_engines.fsdp.strategy import fsdp


class OnCpu(fsdp.FSDP):
    """FSDP1 on the CPU, whatever device is asked for."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(
            *arguments, **{**keywords, "device_id": torch.device("cpu"), "sync_module_states": False}
        )


def register() -> None:
    """What RLinf calls in every worker."""
    fsdp.FSDP = OnCpu
