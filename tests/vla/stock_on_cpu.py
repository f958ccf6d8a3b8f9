"""What lets RLinf's own workers run these models on a CPU: its hook RLINF_EXT_MODULE names this module.

Nothing of the plugin is installed. RLinf 0.3 sets `Worker.torch_platform` to None where there is no
accelerator, and its rollout worker asks that for a device; the stand-in answers, and computes nothing.
"""

import sys

import torch

ROLLOUT = ("rlinf.workers.rollout.hf.huggingface_worker", "MultiStepRolloutWorker")
ACTOR = ("rlinf.workers.actor.fsdp_actor_worker", "EmbodiedFSDPActor")


def register() -> None:
    from rlinf.scheduler import Worker

    from rlinf_async.hosts.rlinf.worker_process import provide_cpu_platform

    provide_cpu_platform(Worker)
    for module, name in (ROLLOUT, ACTOR):
        if module in sys.modules:
            _seed(getattr(sys.modules[module], name))


def _seed(worker_class: type) -> None:
    """Draw weights and actions as our workers do.

    No checkpoint gives weights here, and RLinf seeds no process: learner and sampler would be two models,
    of which only what is trained is synchronised.
    """
    from rlinf_async.ray_runtime.processes.seeds import seed_everything

    stock = worker_class.init_worker

    def init_worker(worker) -> None:
        seed = int(worker.cfg.actor.get("seed", 0))
        torch.manual_seed(seed)
        stock(worker)
        seed_everything(seed + 1 + worker._rank)

    worker_class.init_worker = init_worker
