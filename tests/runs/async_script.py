"""A training script wired like RLinf's own for asynchronous PPO: the same imports, decorator and calls.

It knows nothing of rlinf-async, and prints the classes that RLinf's names led to, as entry_script.py does.
"""

import json

import hydra
import torch.multiprocessing as mp
from omegaconf.omegaconf import OmegaConf
from rlinf.config import validate_cfg
from rlinf.scheduler import Cluster
from rlinf.utils.placement import HybridComponentPlacement
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.reward.reward_worker import EmbodiedRewardWorker  # noqa: F401 - RLinf's script has it
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker

mp.set_start_method("spawn", force=True)


@hydra.main(version_base="1.1", config_path="config", config_name="some_config")
def main(cfg) -> None:
    cfg = validate_cfg(cfg)
    print(json.dumps(OmegaConf.to_container(cfg, resolve=True), indent=2))  # noqa: T201
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=cfg.runner.per_worker_log_path)
    placement = HybridComponentPlacement(cfg, cluster)

    from rlinf.runners.async_ppo_embodied_runner import AsyncPPOEmbodiedRunner
    from rlinf.workers.actor.async_ppo_fsdp_worker import AsyncPPOEmbodiedFSDPActor

    actor = AsyncPPOEmbodiedFSDPActor.create_group(cfg).launch(
        cluster, name=cfg.actor.group_name, placement_strategy=placement.get_strategy("actor")
    )
    rollout = AsyncMultiStepRolloutWorker.create_group(cfg).launch(
        cluster, name=cfg.rollout.group_name, placement_strategy=placement.get_strategy("rollout")
    )
    env = AsyncEnvWorker.create_group(cfg).launch(
        cluster, name=cfg.env.group_name, placement_strategy=placement.get_strategy("env")
    )
    runner = AsyncPPOEmbodiedRunner(cfg=cfg, actor=actor, rollout=rollout, env=env, reward=None)
    names = [group.worker_cls_name for group in (env, rollout, actor)]
    print("CLASSES", *names, type(runner).__name__)  # noqa: T201
    runner.init_workers()
    runner.run()


if __name__ == "__main__":
    main()
