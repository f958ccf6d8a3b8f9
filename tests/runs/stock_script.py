"""RLinf as it is without this package: the calls of its own script for embodied agents, on a YAML.

It reads the YAML by itself, for Hydra would load the plugin.
"""

import sys

import torch.multiprocessing as mp
from omegaconf import OmegaConf
from rlinf.config import validate_cfg
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster
from rlinf.utils.placement import HybridComponentPlacement
from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker


def main(path: str) -> None:
    cfg = validate_cfg(OmegaConf.load(path))
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=cfg.runner.per_worker_log_path)
    placement = HybridComponentPlacement(cfg, cluster)
    actor = EmbodiedFSDPActor.create_group(cfg).launch(
        cluster, name=cfg.actor.group_name, placement_strategy=placement.get_strategy("actor")
    )
    rollout = MultiStepRolloutWorker.create_group(cfg).launch(
        cluster, name=cfg.rollout.group_name, placement_strategy=placement.get_strategy("rollout")
    )
    env = EnvWorker.create_group(cfg).launch(
        cluster, name=cfg.env.group_name, placement_strategy=placement.get_strategy("env")
    )
    runner = EmbodiedRunner(cfg=cfg, actor=actor, rollout=rollout, env=env)
    runner.init_workers()
    runner.run()
    names = [group.worker_cls_name for group in (env, rollout, actor)]
    print("CLASSES", *names, type(runner).__name__)  # noqa: T201
    loaded = [name for name in sys.modules if name.split(".")[0] in ("rlinf_async", "hydra_plugins")]
    assert not loaded, f"the driver is not stock: {loaded}"


if __name__ == "__main__":
    mp.set_start_method("spawn", force=True)
    main(sys.argv[1])
