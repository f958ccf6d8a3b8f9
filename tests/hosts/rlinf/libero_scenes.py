"""RLinf's LIBERO as one stage of four, and as a shard of two that stands at the places of that stage.

    python -m tests.hosts.rlinf.libero_scenes ASSETS FOLDER

writes, as JSON, a digest of the first observation of each environment in the second rollout.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.dead_work.frames import fork_simulators
from rlinf_async.lab.demo.simulators.libero import prepare_libero

STAGE, SHARD, SEED = 4, 2, 7
SECTION = {
    "env_type": "libero",
    "task_suite_name": "libero_goal",
    "seed": SEED,
    "group_size": 2,
    "reward_coef": 1.0,
    "max_episode_steps": 100,
    "auto_reset": False,
    "ignore_terminations": False,
    "use_fixed_reset_state_ids": True,
    "use_ordered_reset_state_ids": False,
    "is_eval": False,
    "use_rel_reward": False,
    "reset_gripper_open": True,
    "video_cfg": {"save_video": False},
    "init_params": {"camera_heights": 64, "camera_widths": 64},
}


def shown(env: Any) -> list[str]:
    """A digest of each environment's pictures, state and instruction after a reset."""
    env.is_start = True
    observation, _ = env.reset()
    return [_digest(observation, number) for number in range(env.num_envs)]


def _digest(observation: dict[str, Any], number: int) -> str:
    digest = sha256(observation["task_descriptions"][number].encode())
    for name in ("main_images", "wrist_images", "states"):
        digest.update(observation[name][number].numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    prepare_libero(Path(sys.argv[1]), Path(sys.argv[2]))
    from rlinf.envs.libero.libero_env import LiberoEnv

    fork_simulators()

    from rlinf_async.hosts.rlinf.episode_starts import Stages, with_stock_scenes
    from rlinf_async.hosts.rlinf.frames.libero import adapt

    stock = LiberoEnv(OmegaConf.create(SECTION), STAGE, 0, 1, None)
    stock.update_reset_state_ids()  # as after the first rollout, which is not played
    found = {"stock": shown(stock)}
    stock.env.close()
    stages = Stages(count=1, size=STAGE, seed=SEED)
    env_cls: Any = adapt(with_stock_scenes(LiberoEnv, SECTION, stages))
    # The first shard, built anew under another seed, plays at the place of the second.
    shard = env_cls(OmegaConf.create({**SECTION, "seed": SEED + 7919}), SHARD, 0, STAGE // SHARD, None)
    shard.draw_last_only()
    shard.stand_at(1, 1)
    found["taking on"] = shown(shard)
    shard._stages = replace(stages, shared_scene=True)
    shard.stand_at(0, 1)
    found["sharing"] = shown(shard)
    shard.env.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
