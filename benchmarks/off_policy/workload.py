"""The run that is measured, the same for RLinf's workers and the prototype's: its policy, and its counters.

`register` also adds the parts that RLinf's SAC lacks on a CPU.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rlinf.models import register_model
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy

from benchmarks.learning import fsdp1_on_cpu
from rlinf_async.hosts.rlinf.imports import WORKER_NAME
from rlinf_async.hosts.rlinf.worker_process import WORKER_HOOKS
from rlinf_async.lab.emulated.env import EmulatedEnv

MODEL = "noise_policy"
EVENTS_VARIABLE = "OFF_POLICY_EVENTS"
"""Environment variable with the folder of the counters' files."""
ENV_WORKER_MODULE = "rlinf.workers.env.env_worker"
STATE_SIZE, POOLED_SIDE = 8, 8
FROZEN_SEED = 7


class NoisePolicy(MLPPolicy):
    """RLinf's SAC over the noise of a frozen policy, as DSRL has it.

    The frozen policy is a fixed random matrix from noise to a chunk of actions; a pass sleeps for the time
    of a large one on an accelerator. The learnt part sees the state and the pooled picture.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(
            STATE_SIZE + 3 * POOLED_SIDE**2,
            cfg.noise_dim,
            num_action_chunks=1,
            add_value_head=False,
            add_q_head=True,
        )
        self._cfg = cfg
        size = (cfg.noise_dim, cfg.num_action_chunks * cfg.action_dim)
        frozen = torch.randn(size, generator=torch.Generator().manual_seed(FROZEN_SEED))
        self.register_buffer("frozen", frozen / cfg.noise_dim**0.5)

    def preprocess_env_obs(self, env_obs: dict[str, Any]) -> dict[str, torch.Tensor]:
        pictures = env_obs["main_images"].permute(0, 3, 1, 2).float() / 255
        pooled = torch.nn.functional.adaptive_avg_pool2d(pictures, POOLED_SIDE).flatten(1)
        return {"states": torch.cat([env_obs["states"].float(), pooled], dim=1)}

    def predict_action_batch(self, env_obs: dict[str, Any], **_: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        noise, result = super().predict_action_batch(env_obs, return_obs=False)
        time.sleep(self._cfg.pass_s + self._cfg.sample_s * len(noise))
        actions = (noise[:, 0] @ self.frozen).clamp(-1, 1)
        return actions.reshape(-1, self._cfg.num_action_chunks, self._cfg.action_dim), result


class CountedEnv(EmulatedEnv):
    """Emulated environments that note each decision and reset."""

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self._last_share = cfg.last_share
        self._one_at_a_time = threading.Lock()  # the last step of a turn may reach into the next

    def show(self, frames: str) -> None:
        """Draw `all` frames from now on, or the `last` of each decision."""
        self._batch._slower = [self._last_share if frames == "last" else 1.0] * self.num_envs

    def chunk_step(self, actions: Any) -> Any:
        return self._noted("decisions", super().chunk_step, actions)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self._noted("resets", super().reset, *args, **kwargs)

    def _noted(self, kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._one_at_a_time:
            began_s = time.time()
            found = function(*args, **kwargs)
            note(kind, self.num_envs, time.time() - began_s)
        return found


@cache
def _events() -> Any:
    return (Path(os.environ[EVENTS_VARIABLE]) / f"{os.getpid()}.jsonl").open("a", buffering=1)


def note(kind: str, number: int, seconds: float = 0.0) -> None:
    """Append an event to this process's file."""
    _events().write(json.dumps([time.time(), kind, number, round(seconds, 4)]) + "\n")


def register() -> None:
    """Make this process ready for RLinf's workers, which all run in it."""
    os.environ.setdefault(WORKER_NAME, "local")
    register_model(MODEL, lambda cfg, dtype: NoisePolicy(cfg), force=True)
    WORKER_HOOKS.install()
    fsdp1_on_cpu.register()
    # RLinf's SAC calls both by name.
    vars(torch.cuda).update(synchronize=lambda *_: None, empty_cache=lambda: None)
    module: Any = sys.modules[ENV_WORKER_MODULE]
    module.get_env_cls = lambda *_: CountedEnv
