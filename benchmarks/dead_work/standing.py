"""Check that pausing some simulators of a vector environment does not change the outputs of the others.

    python -m benchmarks.dead_work.standing libero --size 256 --repeats 20 --out FILE

RLinf's own vector environment plays twice (or once, with `--once`), and one with paused simulators once, with
the same actions and seeds; then again with all but the last frame of a decision left out. The outputs of all
simulators that are not paused are compared bit for bit: pictures, states, rewards, terminations, statistics
of episodes; at a reset, the outputs of all simulators.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from benchmarks.dead_work.frames import COMMON_ENV_SETTINGS, SIMULATORS_BY_NAME, difference
from rlinf_async.hosts.kit.playing import StandingVectorEnv

PLAYING_ENVS: list[list[list[int]]] = [[[0, 1, 2], [0, 2], [2]], [[0, 1, 2], [1], []], [[0, 1, 2], [0, 1]]]
"""The numbers of the simulators that are not paused, in each decision of three rollouts. A number counts only
if there are so many simulators."""


def play(
    make: Callable[[], Any], *, width: int, chunk: int, rollouts: list[list[list[int]]], stand: bool
) -> list[Any]:
    """Play `rollouts`; return the outputs of the simulators that are not paused; at resets, those of all."""
    np.random.seed(3)
    torch.manual_seed(3)
    env, actions = make(), np.random.default_rng(0)
    shown: list[Any] = []
    count = env.num_envs
    if leave_out := getattr(env, "draw_last_only", None):
        leave_out()

    def let_play(numbers: Sequence[int]) -> None:
        if stand:
            StandingVectorEnv.within(env).let_play(None if len(numbers) == count else numbers)

    for decisions in rollouts:
        let_play(range(count))
        env.is_start = True
        shown.append(env.reset()[0])
        for playing in ([number for number in each if number < count] for each in decisions):
            let_play(playing)
            # From [-0.5, 0.5]: arms move, and do not leave the table.
            action = torch.from_numpy(actions.uniform(-0.5, 0.5, (count, chunk, width))).float()
            observations, *rest, infos = env.chunk_step(action)
            shown.append(rows([observations[-1], *rest, infos[-1]["episode"]], playing))
    env.env.close()
    return shown


def rows(tree: Any, playing: list[int]) -> Any:
    """Return the rows `playing` of every field of a tree."""
    if isinstance(tree, dict):
        return {name: rows(each, playing) for name, each in tree.items()}
    if isinstance(tree, torch.Tensor | np.ndarray):
        return tree[playing]
    if isinstance(tree, list) and not (tree and isinstance(tree[0], str)):
        return [rows(each, playing) for each in tree]
    # A list of task descriptions, one for each simulator.
    return tree and [tree[number] for number in playing]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulator", choices=("libero", "metaworld"))
    parser.add_argument("--task")
    parser.add_argument("--chunk", type=int, default=2)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=len(PLAYING_ENVS), help="of each repeat")
    parser.add_argument("--once", action="store_true", help="do not compare stock with itself")
    parser.add_argument("--frames", nargs="+", choices=("all", "last"), default=["all", "last"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prepare, task, width = SIMULATORS_BY_NAME[options.simulator]
    section = {**COMMON_ENV_SETTINGS, "max_episode_steps": 10**6}
    stock, adapt = prepare(section, options.task or task, options.size)
    result: dict[str, Any] = {"simulator": options.simulator, "task": options.task or task}
    for frames in options.frames:
        env_cls: Any = stock if frames == "all" else adapt(stock)
        make = partial(env_cls, OmegaConf.create(section), options.envs, 0, 1, None)
        rollouts = PLAYING_ENVS[: options.rollouts] * options.repeats
        played = partial(play, make, width=width, chunk=options.chunk, rollouts=rollouts)
        first = played(stand=False)
        result[frames] = {
            "shown": len(first),
            "stock_and_stock": None if options.once else difference(first, played(stand=False)),
            "stock_and_standing": difference(first, played(stand=True)),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
