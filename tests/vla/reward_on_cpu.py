"""What lets RLinf's reward workers run on a CPU: its hook RLINF_EXT_MODULE names this module.

They ask torch for a CUDA device, and do nothing else with it than to keep the model there.
"""

import torch


def register() -> None:
    from rlinf.scheduler import Worker

    from rlinf_async.hosts.rlinf.worker_process import provide_cpu_platform

    provide_cpu_platform(Worker)
    torch.cuda.set_device = lambda device: None
    torch.cuda.current_device = lambda: torch.device("cpu")
