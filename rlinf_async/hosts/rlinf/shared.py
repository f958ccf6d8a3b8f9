"""What the processes of a run under RLinf have in common, for `ray_runtime/cluster/template.py`."""

from __future__ import annotations

from rlinf_async.hosts.rlinf.imports import WORKER_NAME
from rlinf_async.ray_runtime.cluster.template import Shared

OF_A_PROCESS = (
    "ACCELERATOR_MODEL",
    "ACCELERATOR_TYPE",
    "CATCH_SYSTEM_FAILURE",
    "CLUSTER_NAMESPACE",
    "CLUSTER_NODE_RANK",
    "GROUP_NAME",
    "ISOLATE_ACCELERATOR",
    "LOCAL_ACCELERATOR_RANK",
    "LOCAL_HARDWARE_RANKS",
    "MASTER_ADDR",
    "NODE_GROUP_LABEL",
    "NODE_LOCAL_RANK",
    "NODE_LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "PYTHONBREAKPOINT",
    "RANK",
    "RAY_ACTOR",
    "VISIBLE_DEVICES",
    "WORLD_SIZE",
)
"""Variables that RLinf gives to each worker."""
OF_THE_CLUSTER = ("CATCH_FAILURE", "CODE_WORKING_DIR", "PATH_ENV_MERGE_MODE", "TIMEOUT")
"""Settings that RLinf completes in workers, as `RLINF_…`."""

SHARED = Shared(
    # The modules of RLinf import these; most of their time is that of the sharded tensors.
    early=("torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "omegaconf", "gymnasium"),
    modules=("rlinf_async.hosts.rlinf.worker_imports",),
    free=frozenset((*OF_A_PROCESS, *(f"RLINF_{name}" for name in OF_THE_CLUSTER))),
    # `imports.py` looks if it is there; `worker_imports` sets it.
    checked=frozenset({WORKER_NAME}),
)
