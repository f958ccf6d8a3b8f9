"""Starts RLinf on a YAML, as `launcher.py FOLDER NAME`; beside the run it prints the classes that ran."""

import os
import sys
from pathlib import Path


def main(config_dir, config_name):
    os.environ.setdefault("RLINF_EXT_MODULE", "tests.runs.isaac_like.extension")
    os.environ["RLINF_CONFIG_FILE"] = str(Path(config_dir) / f"{config_name}.yaml")

    import torch.multiprocessing as mp
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import open_dict
    from rlinf.config import validate_cfg
    from rlinf.runners.embodied_runner import EmbodiedRunner
    from rlinf.scheduler import Cluster
    from rlinf.utils.placement import HybridComponentPlacement
    from rlinf.workers.env.env_worker import EnvWorker
    from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

    mp.set_start_method("spawn", force=True)
    GlobalHydra.instance().clear()
    initialize_config_dir(config_dir=config_dir, version_base="1.1")
    cfg = compose(config_name=config_name)
    with open_dict(cfg):
        cfg.runner.logger.log_path = str(Path.cwd() / "run")
    cfg = validate_cfg(cfg)
    cluster = Cluster(cluster_cfg=cfg.cluster)
    placement = HybridComponentPlacement(cfg, cluster)

    from rlinf.workers.actor.fsdp_actor_worker import EmbodiedFSDPActor

    groups = [
        worker.create_group(cfg).launch(
            cluster, name=cfg[part].group_name, placement_strategy=placement.get_strategy(part)
        )
        for part, worker in (
            ("actor", EmbodiedFSDPActor),
            ("rollout", MultiStepRolloutWorker),
            ("env", EnvWorker),
        )
    ]
    actor, rollout, env = groups
    runner = EmbodiedRunner(cfg=cfg, actor=actor, rollout=rollout, env=env)
    print("CLASSES", *(group.worker_cls_name for group in groups), type(runner).__name__)  # noqa: T201
    runner.init_workers()
    runner.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
