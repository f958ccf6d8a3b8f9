"""A package of a third party that plugs into RLinf by `RLINF_EXT_MODULE`, and knows nothing of rlinf-async.

It registers a model and an environment, and its script runs a subclass of RLinf's env worker. What has been
used leaves a file in the folder that THEIR_MARKS names.
"""

import os
from pathlib import Path

from rlinf.workers.env import env_worker
from rlinf.workers.env.env_worker import EnvWorker


def mark(name: str) -> None:
    (Path(os.environ["THEIR_MARKS"]) / name).touch()


class CalibratedEnvWorker(EnvWorker):
    def init_worker(self):
        super().init_worker()
        self.offset = 0.0

    def env_interact_step(self, chunk_actions, stage_id):
        mark("worker")
        return super().env_interact_step(chunk_actions + self.offset, stage_id)


def build_policy(cfg, torch_dtype):
    from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy

    mark("model")
    return MLPPolicy(
        cfg.obs_dim,
        cfg.action_dim,
        num_action_chunks=cfg.num_action_chunks,
        add_value_head=cfg.add_value_head,
        add_q_head=cfg.add_q_head,
    )


def register() -> None:
    from rlinf.models import register_model

    register_model("their_policy", build_policy, force=True)
    get_env_cls = env_worker.get_env_cls

    def choose(env_type, env_cfg=None):
        found = get_env_cls(env_type, env_cfg)
        mark("environment")
        return type(f"Their{found.__name__}", (found,), {})

    env_worker.get_env_cls = choose
