"""Compare environments that render only observed frames with RLinf's own: equal outputs, and CPU time.

    python -m benchmarks.dead_work.frames libero --chunk 10 --size 256 --decisions 6 --turns 3 --out FILE

Both play the same actions from the same seeds. All outputs of a decision are compared bit for bit: pictures,
states, rewards, terminations, final observations. The CPU time is that of this process and of the simulators'
processes, without resets. LIBERO needs RLINF_ASYNC_LIBERO_ASSETS, ManiSkill a Vulkan driver
(VK_ICD_FILENAMES), and takes RENDER_BACKEND and SIM_BACKEND from the environment.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import torch
from omegaconf import OmegaConf

COMMON_ENV_SETTINGS: dict[str, Any] = {
    "auto_reset": False,
    "ignore_terminations": False,
    "seed": 0,
    "group_size": 1,
    "reward_coef": 1.0,
}
COMMON_ENV_SETTINGS |= {
    "use_fixed_reset_state_ids": False,
    "use_ordered_reset_state_ids": False,
    "is_eval": False,
}
COMMON_ENV_SETTINGS |= {"use_rel_reward": False, "video_cfg": {"save_video": False}}
STOCK_SIDE, LAST_FRAMES_SIDE = "stock", "last"


def fork_simulators() -> None:
    """Have RLinf fork LIBERO's simulators; it starts Python for each, which imports for seconds.

    Not where a GPU renders: what its driver has opened cannot be forked.
    """
    if os.environ["MUJOCO_GL"] == "osmesa":
        import libero.libero.envs  # noqa: F401
        import rlinf.envs.libero.venv as module

        module.multiprocessing = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))


def libero(section: dict[str, Any], task: str, size: int) -> tuple[type, Callable[[type], type | None]]:
    """Return RLinf's environment class and our adapter, and add LIBERO's keys to the config `section`."""
    from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, prepare_libero

    prepare_libero(Path(os.environ[ASSETS_VARIABLE]), Path(tempfile.mkdtemp()))
    from rlinf.envs.libero.libero_env import LiberoEnv

    fork_simulators()
    from rlinf_async.hosts.rlinf.frames.libero import adapt

    section |= {"task_suite_name": task, "reset_gripper_open": True}
    section |= {"init_params": {"camera_heights": size, "camera_widths": size}}
    return LiberoEnv, adapt


def one_task(task: str) -> type:
    """Return a class in place of RLinf's `MetaWorldBenchmark`, with one task: RLinf's wheel lacks the file
    with the names of the tasks.
    """

    class OneTask:
        def __init__(self, _: str) -> None:
            pass

        def get_num_tasks(self) -> int:
            return 1

        def get_task_num_trials(self) -> int:
            return 10

        def get_env_names(self) -> list[str]:
            return [task]

        get_task_description = get_env_names

    return OneTask


def metaworld(section: dict[str, Any], task: str, size: int) -> tuple[type, Callable[[type], type | None]]:
    import gymnasium
    import gymnasium.utils.seeding as seeding
    import rlinf.envs.metaworld.metaworld_env as module

    from rlinf_async.hosts.rlinf.frames.metaworld import adapt

    # RLinf seeds neither numpy nor gymnasium here; the simulators' processes are forks of this one.
    unseeded = seeding.np_random
    seeding.np_random = lambda seed=None: unseeded(5 if seed is None else seed)
    module.MetaWorldBenchmark = one_task(task)
    # RLinf sets no size, and gets Meta-World's default of 480 pixels.
    gymnasium.make = partial(gymnasium.make, width=size, height=size)
    section |= {"task_suite_name": "one"}
    return module.MetaWorldEnv, adapt


def maniskill(section: dict[str, Any], task: str, size: int) -> tuple[type, Callable[[type], type | None]]:
    import mani_skill.envs.utils.system.backend as backend
    from rlinf.envs.maniskill.maniskill_env import ManiskillEnv

    from rlinf_async.hosts.rlinf.frames.maniskill import adapt

    # ManiSkill 3.0.1 expects one colon in the name of a device: "pci:0000:00:00.0" has three.
    plain = backend.parse_backend_device_id
    backend.parse_backend_device_id = lambda name: (name, None) if name.startswith("pci:") else plain(name)
    section |= {"wrap_obs_mode": "simple", "reward_mode": "raw"}
    section |= {
        "init_params": {
            "id": task,
            "obs_mode": "rgb",
            "control_mode": "pd_joint_delta_pos",
            "sim_backend": os.environ.get("SIM_BACKEND", "cpu"),
            "render_backend": os.environ.get("RENDER_BACKEND", "pci:0000:00:00.0"),
            "max_episode_steps": section["max_episode_steps"],
            "sensor_configs": {"width": size, "height": size},
        }
    }
    return ManiskillEnv, adapt


SIMULATORS_BY_NAME = {
    "libero": (libero, "libero_spatial", 7),
    "metaworld": (metaworld, "reach-v3", 4),
    "maniskill": (maniskill, "PickCube-v1", 8),
}
"""By simulator: the function that returns the classes, the default task, and the width of an action."""


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all its descendants."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def play(make: Callable[[], Any], *, width: int, chunk: int, decisions: int, resets: int) -> dict[str, Any]:
    """Play `resets` rollouts; return all outputs, CPU seconds and seconds per decision, and (frames drawn,
    left out).
    """
    np.random.seed(3)
    torch.manual_seed(3)
    env, actions = make(), np.random.default_rng(0)
    if leave_out := getattr(env, "draw_last_only", None):
        leave_out()
    shown: list[Any] = []
    spent_s = waited_s = 0.0
    for _ in range(resets):
        env.is_start = True
        shown.append(env.reset()[0])
        began_s, began = cpu_s(), time.perf_counter()
        for _ in range(decisions):
            # From [-0.5, 0.5]: arms move, and do not leave the table.
            action = torch.from_numpy(actions.uniform(-0.5, 0.5, (env.num_envs, chunk, width))).float()
            observations, *rest, infos = env.chunk_step(action)
            info = infos[-1]
            # Where an episode has ended and was reset, these are the statistics of the ended episode.
            episode = info.get("final_info", info)["episode"]
            shown.append((observations[-1], *rest, info.get("final_observation"), episode))
        waited_s += time.perf_counter() - began
        spent_s += cpu_s() - began_s
    count = (getattr(env, "frames_drawn", 0), getattr(env, "frames_left_out", 0))
    close = getattr(env.env, "close", None)
    if callable(close):
        close()
    made = resets * decisions
    return {"shown": shown, "cpu_s": spent_s / made, "seconds": waited_s / made, "frames": count}


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the path of the first difference between two trees, bit for bit; None if they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{path}: {sorted(one)} and {sorted(other)}"
        found = (difference(one[name], other[name], f"{path}/{name}") for name in one)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        found = (difference(*pair, f"{path}/{i}") for i, pair in enumerate(zip(one, other, strict=True)))
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return None if one.dtype == other.dtype and torch.equal(one, other) else path
    elif isinstance(one, np.ndarray):
        return None if np.array_equal(one, other) else path
    else:
        return None if type(one) is type(other) and one == other else path
    return next((each for each in found if each), None)


def _ratio(seconds: dict[str, list[float]]) -> float:
    return round(mean(seconds[LAST_FRAMES_SIDE]) / mean(seconds[STOCK_SIDE]), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulator", choices=SIMULATORS_BY_NAME)
    parser.add_argument("--task")
    parser.add_argument("--chunk", type=int, default=10)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--decisions", type=int, default=6)
    parser.add_argument("--resets", type=int, default=1)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--horizon", type=int, default=10**6)
    parser.add_argument("--auto-reset", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prepare, task, width = SIMULATORS_BY_NAME[options.simulator]
    section = {**COMMON_ENV_SETTINGS, "auto_reset": options.auto_reset, "max_episode_steps": options.horizon}
    stock, adapt = prepare(section, options.task or task, options.size)
    classes: dict[str, Any] = {STOCK_SIDE: stock, LAST_FRAMES_SIDE: adapt(stock)}
    played: dict[str, list[dict[str, Any]]] = {STOCK_SIDE: [], LAST_FRAMES_SIDE: []}
    for _ in range(options.turns):
        for name, env_cls in classes.items():
            make = partial(env_cls, OmegaConf.create(section), options.envs, 0, 1, None)
            sizes = {"chunk": options.chunk, "decisions": options.decisions, "resets": options.resets}
            played[name].append(play(make, width=width, **sizes))
    found = difference(played[STOCK_SIDE][0]["shown"], played[LAST_FRAMES_SIDE][0]["shown"])
    cpu_seconds, seconds = (
        {name: [round(each[kind], 4) for each in plays] for name, plays in played.items()}
        for kind in ("cpu_s", "seconds")
    )
    drawn, left_out = played[LAST_FRAMES_SIDE][0]["frames"]
    result = {
        "simulator": options.simulator,
        "task": options.task or task,
        "chunk": options.chunk,
        "size": options.size,
        "environments": options.envs,
        "steps": options.decisions * options.chunk * options.resets,
        "equal": found is None,
        "difference": found,
        "cpu_s_per_decision": cpu_seconds,
        "ratio": _ratio(cpu_seconds),
        "seconds_per_decision": seconds,
        "seconds_ratio": _ratio(seconds),
        "frames": {"drawn": drawn, "left_out": left_out},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
