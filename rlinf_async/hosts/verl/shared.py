"""What the processes of a run under veRL have in common, for `ray_runtime/cluster/template.py`."""

from __future__ import annotations

from rlinf_async.ray_runtime.cluster.template import Shared

OF_A_LEARNER_RANK = (
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "RAY_LOCAL_RANK",
    "RAY_LOCAL_WORLD_SIZE",
    "WG_BACKEND",
    "WG_PREFIX",
    "WORLD_SIZE",
)
"""Variables that veRL gives to each rank of a worker group."""

PACKAGE = "rlinf_async"

SHARED = Shared(
    early=("torch.distributed.tensor", "torch._inductor.compile_fx", "transformers", "tensordict"),
    modules=(
        f"{PACKAGE}.ray_runtime.processes.request_channel",
        f"{PACKAGE}.ray_runtime.processes.coordinator",
        f"{PACKAGE}.hosts.workers.env_actor",
        f"{PACKAGE}.hosts.workers.inference_actor",
        f"{PACKAGE}.hosts.verl.learner_worker",
    ),
    free=frozenset(OF_A_LEARNER_RANK),
)
