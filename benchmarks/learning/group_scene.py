"""Does GRPO learn otherwise when all members of a group start in one scene? `nice python -m
benchmarks.learning.group_scene` runs the rows that are missing, and can be interrupted.

**Not run yet: no row of it exists.** What follows was written down, and committed, before any run.

Question. RLinf gives the members of a GRPO group one task and one recorded state, and each another scene: its
cabinets, stoves and racks stand up to 1.8 cm apart. `async.advanced.shared_group_scene` gives them one. Is
more learned, less, or as much?

Setting. RLinf's own `LiberoEnv`, real simulators, task 0 of libero_goal ("open the middle drawer of the
cabinet"), whose cabinet is drawn at each reset. A policy of under a million random weights that sees one
picture of 64 pixels (`configs/libero_object_ppo_vla.yaml`). It never opens a drawer, so that success would
measure nothing: the reward of a step is the negative distance, in metres, from the gripper to the cabinet.
It depends on the scene, and pictures show it. GRPO, two groups of four, 20 decisions of two steps,
`async.mode=lean`, 30 batches a run.

Runs. Ten seeds, 200 to 209, which nothing else used; two arms of a seed before the next seed: `apart`, which
is RLinf's, and `shared`. Arms share initial weights, tasks, states and the scene of the first member.

Measure. The mean return of the last ten batches minus that of the first three, of a run. Paired by seed,
`shared` minus `apart`, as a share of the mean that `apart` learned.

Test. Two one-sided t-tests (TOST) at 5 % with a margin of 10 %: "equivalent" if the 90 % interval lies
within it; else "better" or "worse" if the 95 % interval excludes 0, else "open". If `apart` has not learned
(its mean is not above 0, one-sided at 2.5 %), the experiment has no result.

Stopping rule. All twenty runs; before the last the report says how many there are, and computes nothing. Runs
that fail are made again.

Time, estimated from two simulators by themselves: a reset takes 3.5 s of CPU time a simulator and a decision
0.19 s, so that a batch takes a minute of one core, a run half an hour, and all twenty about ten hours. Two
stationary grippers had returns that differed by 2 % (1.4 cm between their cabinets); a rehearsal
(`--rehearse 30`, a seed that does not count) may choose the learning rate before the first run, and nothing
else.

It says nothing of success, of VLAs of a real size, or of tasks that touch what has moved.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from torch import multiprocessing

from benchmarks.dead_work.learning_on_rlinf import end_workers
from benchmarks.learning.statistics import tost_paired
from benchmarks.result_store import add_row, read_rows
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.hooks import prepare, say_once
from rlinf_async.hosts.rlinf.train import train
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.plugin import register as register_plugin

RESULTS_FILE = Path(__file__).parent / "results" / "group-scene.jsonl"
RUNS_FOLDER = Path("runs")
SEEDS, REHEARSAL_SEED, BATCH_COUNT = range(200, 210), 300, 30
ARMS = {"apart": "false", "shared": "true"}
"""The values of `async.advanced.shared_group_scene`; the first is RLinf's."""
FIRST_BATCHES, LAST_BATCHES = 3, 10
EQUIVALENCE_MARGIN = 0.1
RETURN_METRIC = "env/return"
CABINET = "wooden_cabinet_1"
PLACE = "cabinet_position"
"""The name of a further observation, [3] metres in the frame of the world."""

OVERRIDES = (
    *(f"env.{part}.task_suite_name=libero_goal" for part in ("train", "eval")),
    *("env.train.task_id_filter=[0]", "env.train.total_num_envs=8", "env.train.max_episode_steps=40"),
    *("env.train.use_rel_reward=false", "algorithm.adv_type=grpo", "algorithm.loss_type=actor"),
    *("algorithm.group_size=4", "algorithm.update_epoch=2", "actor.model.add_value_head=false"),
    *("actor.model.num_action_chunks=2", "actor.micro_batch_size=40", "actor.global_batch_size=80"),
    *("actor.optim.lr=1e-4", "async.mode=lean"),
)


def register() -> None:
    """Have env workers of this process build LIBERO with the reward of this experiment; RLinf calls it."""
    from rlinf.workers.env import env_worker

    stock = env_worker.get_env_cls

    def choose(env_type: str, env_cfg: Any = None) -> type:
        found: type = stock(env_type, env_cfg)
        return found if issubclass(found, _Reaching) else type("ReachingLibero", (_Reaching, found), {})

    env_worker.get_env_cls = choose


class _Reaching:
    """Rewards a short way from the gripper to the cabinet; goes before RLinf's `LiberoEnv`."""

    current_raw_obs: Sequence[Mapping[str, Any]]

    def get_env_fns(self) -> list[Callable[[], Any]]:
        return [partial(seeing_the_cabinet, build) for build in super().get_env_fns()]  # type: ignore[misc]

    def _calc_step_reward(self, terminations: object) -> np.ndarray:
        del terminations
        ways = [observation[PLACE] - observation["robot0_eef_pos"] for observation in self.current_raw_obs]
        return -np.linalg.norm(ways, axis=1)


def seeing_the_cabinet(build: Callable[[], Any]) -> Any:
    """Return the simulator of `build`; observations of it, and of those that its process builds later, tell
    where the cabinet stands.
    """
    from libero.libero.envs import OffScreenRenderEnv

    begin = OffScreenRenderEnv.__init__

    def begin_seeing(simulator: Any, **options: Any) -> None:
        begin(simulator, **options)
        simulator.env._get_observations = partial(_observed, simulator.env, simulator.env._get_observations)

    # In place, as RLinf's process of a simulator knows this class by name, and builds it anew.
    OffScreenRenderEnv.__init__ = begin_seeing
    return build()


def _observed(
    scene: Any, observe: Callable[..., dict[str, Any]], *given: Any, **options: Any
) -> dict[str, Any]:
    body = scene.sim.model.body_name2id(scene.fixtures_dict[CABINET].root_body)
    return {**observe(*given, **options), PLACE: scene.sim.data.body_xpos[body].copy()}


def run(arm: str, seed: int, *, batches: int = BATCH_COUNT) -> dict[str, Any]:
    """Train in this process and its Ray cluster; return the row of the run.

    Raises:
        RuntimeError: the run lacks steps.
    """
    directory = (RUNS_FOLDER / f"group-scene-{arm}-{seed}").resolve()
    shutil.rmtree(directory, ignore_errors=True)  # or logs of an earlier attempt would be read as well
    overrides = [
        *OVERRIDES,
        *SIDES_BY_HOST["rlinf"].run(directory=directory, steps=batches, seed=seed),
        f"async.advanced.shared_group_scene={ARMS[arm]}",
    ]
    began_s = time.monotonic()
    cfg = compose_config("libero_object_ppo_vla", overrides, None)
    say_once(prepare(cfg), cfg)
    train(cfg)
    end_workers()
    returns = list(read_scalars(directory).get(RETURN_METRIC, {}).values())
    if len(returns) != batches:
        raise RuntimeError(f"{directory.name} has logged {len(returns)} of {batches} steps")
    seconds = round(time.monotonic() - began_s, 1)
    return {"arm": arm, "seed": seed, "returns": [round(value, 5) for value in returns], "seconds": seconds}


def missing(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield the seeds and arms that `rows` lack, in the order of the plan."""
    made = {(row["seed"], row["arm"]) for row in rows}
    yield from ((seed, arm) for seed, arm in product(SEEDS, ARMS) if (seed, arm) not in made)


def learned(row: Mapping[str, Any]) -> float:
    """Return the mean return of the last batches minus that of the first."""
    returns = row["returns"]
    return float(np.mean(returns[-LAST_BATCHES:]) - np.mean(returns[:FIRST_BATCHES]))


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of the plan in words; nothing is computed before the last run."""
    left = list(missing(rows))
    if left:
        return f"{len(SEEDS) * len(ARMS) - len(left)} of {len(SEEDS) * len(ARMS)} runs: no result yet"
    found = {(row["arm"], row["seed"]): learned(row) for row in rows}
    apart, shared = ([found[arm, seed] for seed in SEEDS] for arm in ARMS)
    mean = float(np.mean(apart))
    if stats.ttest_1samp(apart, 0.0, alternative="greater").pvalue >= 0.025:
        return f"no result: `apart` has not learned ({mean:+.4f} m)"
    test = tost_paired(
        [value / mean for value in apart], [value / mean for value in shared], EQUIVALENCE_MARGIN
    )
    low, high = stats.t.interval(
        0.95, len(SEEDS) - 1, loc=test.difference, scale=stats.sem(np.subtract(shared, apart) / mean)
    )
    word = "open"
    if test.verdict == "equivalent":
        word = "equivalent"
    elif low > 0 or high < 0:
        word = "better" if low > 0 else "worse"
    return (
        f"{word}: shared - apart {test.difference:+.1%} of what apart learned, 95 % [{low:+.1%}, {high:+.1%}]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only print the verdict")
    parser.add_argument("--rehearse", type=int, metavar="BATCHES", help="one run of another seed, not stored")
    options = parser.parse_args()
    if not options.report:
        multiprocessing.set_start_method("spawn", force=True)
        os.environ["RLINF_EXT_MODULE"] = "benchmarks.learning.group_scene"
        register_plugin()
        register()
    if options.rehearse:
        print(run("shared", REHEARSAL_SEED, batches=options.rehearse), flush=True)
        return
    if not options.report:
        for seed, arm in missing(read_rows(RESULTS_FILE)):
            add_row(RESULTS_FILE, run(arm, seed))
    print(verdict(read_rows(RESULTS_FILE)))


if __name__ == "__main__":
    main()
