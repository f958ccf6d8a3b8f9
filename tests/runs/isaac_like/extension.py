"""The module that RLINF_EXT_MODULE names: RLinf calls `register` in every worker."""

import functools
import os
from pathlib import Path

import torch
import yaml


@functools.cache
def settings():
    """The file of the run, read without Hydra."""
    return yaml.safe_load(Path(os.environ["RLINF_CONFIG_FILE"]).read_text())


def register():
    from rlinf.envs.isaaclab import REGISTER_ISAACLAB_ENVS

    for section in ("train", "eval"):
        task = settings()["env"][section]["init_params"]["id"]
        REGISTER_ISAACLAB_ENVS.setdefault(task, _environment())


@functools.cache
def _environment():
    from rlinf.envs.isaaclab.isaaclab_env import IsaaclabBaseEnv

    class StandInEnv(IsaaclabBaseEnv):
        def _make_env_function(self):
            environments = self.cfg.init_params.num_envs

            def make():
                from tests.runs.isaac_like.simulator import App, Reach

                return Reach(environments), App()

            return make

        def _wrap_obs(self, obs):
            shown = settings()["env"]["train"]["isaaclab"]
            return {
                "main_images": obs["camera_images"][shown["main_images"]],
                "states": torch.cat([obs["policy"][spec["key"]] for spec in shown["states"]], dim=-1),
                "task_descriptions": [shown["task_description"]] * self.num_envs,
            }

    return StandInEnv
