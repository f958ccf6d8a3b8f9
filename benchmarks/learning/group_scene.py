"""Does GRPO learn otherwise when all members of a group start in one scene? `nice python -m
benchmarks.learning.group_scene` runs the rows that are missing, and can be interrupted.

What follows was written down, and committed, before the first run that counts. It replaces a plan with
pictures on RLinf's workers, of which no run was made: it would have taken ten hours.

Question. RLinf gives the members of a GRPO group one task and one recorded state, and each another scene: its
cabinets, stoves and racks stand up to 1.8 cm apart. `async.advanced.shared_group_scene` gives them one. Is
more learned, less, or as much?

Setting. LIBERO's own simulators without pictures, task 0 of libero_goal ("open the middle drawer of the
cabinet"), in the scenes of RLinf's seeds (`Stages.scene_seeds`), which are the same in each rollout. A small
Gaussian policy sees where the gripper and the cabinet are, and moves the gripper. It never opens a drawer, so
that success would measure nothing: the reward of a decision is the negative distance, in metres, from the
gripper to a point before the cabinet, and depends on the scene. GRPO of the local host, two groups of four,
20 decisions of two steps, `async.mode=lean`, 20 batches a run.

Runs. Ten seeds, 200 to 209, which nothing else used; two arms of a seed before the next seed: `apart`, which
is RLinf's, and `shared`. Arms share initial weights, recorded states and the scene of the first member.

Measure. The mean return of the last ten batches minus that of the first three, of a run. Paired by seed,
`shared` minus `apart`, as a share of the mean that `apart` learned. Beside it, without a test: the mean
return of the trained policy in eight scenes that no run trains in (seeds 9000 to 9007), as `apart` trains in
eight scenes, and `shared` in two.

Test. Two one-sided t-tests (TOST) at 5 % with a margin of 10 %: "equivalent" if the 90 % interval lies within
it; else "better" or "worse" if the 95 % interval excludes 0, else "open". If `apart` has not learned (its
mean is not above 0, one-sided at 2.5 %), the experiment has no result.

Stopping rule. All twenty runs; before the last the report says how many there are, and computes nothing. Runs
that fail are made again. A rehearsal (`--rehearse 20`, a seed that does not count) may choose the learning
rate before the first run, and nothing else.

It says nothing of success, of pictures, of VLAs of a real size, or of tasks that touch what has moved.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks.learning.statistics import tost_paired
from benchmarks.result_store import add_row, read_rows
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.rlinf.episode_starts import Stages
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, prepare_libero

RESULTS_FILE = Path(__file__).parent / "results" / "group-scene.jsonl"
SEEDS, REHEARSAL_SEED, BATCH_COUNT = range(200, 210), 300, 20
ARMS = {"apart": False, "shared": True}
"""The values of `async.advanced.shared_group_scene`; the first is RLinf's."""
UNSEEN_SCENE_SEEDS = range(9000, 9008)
ENV_COUNT, GROUP_SIZE = 8, 4
DECISIONS_PER_EPISODE, STEPS_PER_DECISION = 20, 2
FIRST_BATCHES, LAST_BATCHES = 3, 10
EQUIVALENCE_MARGIN = 0.1
LEARNING_RATE = 1e-3
POLICY = partial(GaussianPolicy, hidden=64)

SUITE, TASK, CABINET = "libero_goal", 0, "wooden_cabinet_1"
BEFORE_CABINET_M = np.array([0.0, 0.2, 0.15])
"""From the cabinet to the point that is rewarded; free of contacts, which make a step ten times as dear."""
MIDDLE_M = np.array([-0.09, -0.01, 1.11])
"""A point between the gripper's start and the rewarded point of a usual scene: the origin of the policy's
inputs."""
UNIT_M = 0.1


class Simulator:
    """A simulator of LIBERO without pictures, in the scene of a seed."""

    def __init__(self) -> None:
        from libero.libero import benchmark, get_libero_path
        from libero.libero.envs.env_wrapper import ControlEnv

        suite = benchmark.get_benchmark_dict()[SUITE]()
        task = suite.get_task(TASK)
        file = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        self.initial_states = suite.get_task_init_states(TASK)
        self._simulator = ControlEnv(str(file), has_offscreen_renderer=False, use_camera_obs=False)
        self._seed: int | None = None

    def stand_in(self, seed: int) -> None:
        """Draw the scene of `seed`, as a reset of RLinf's does."""
        if seed == self._seed:
            return
        self._simulator.env.hard_reset = True
        self._simulator.seed(seed)
        self._simulator.reset()
        self._seed = seed
        model = self._simulator.sim.model
        # Later resets keep the model, and draw places of fixtures anew.
        self._simulator.env.hard_reset = False
        self._places = model.body_pos.copy(), model.body_quat.copy()
        body = model.body_name2id(self._simulator.env.fixtures_dict[CABINET].root_body)
        self.goal = self._simulator.sim.data.body_xpos[body] + BEFORE_CABINET_M

    def begin(self, state: int) -> np.ndarray:
        """Start from a recorded state; return the gripper's place, [3] metres."""
        self._simulator.reset()
        model = self._simulator.sim.model
        model.body_pos[:], model.body_quat[:] = self._places
        observation = self._simulator.set_init_state(self.initial_states[state])
        return np.asarray(observation["robot0_eef_pos"])

    def move(self, action: np.ndarray) -> np.ndarray:
        """Move by [3] shares of the largest step, without turning; return the gripper's place, [3] metres."""
        for _ in range(STEPS_PER_DECISION):
            observation, *_ = self._simulator.step([*np.clip(action, -1.0, 1.0), 0.0, 0.0, 0.0, -1.0])
        return np.asarray(observation["robot0_eef_pos"])


class Reaching(StateEnvs):
    """Simulators with the negative distance from the gripper to a point before the cabinet as reward.

    The k-th episode of a group begins in one recorded state, drawn from `seed`, group and k.
    """

    state_dim = 6
    action_dim = 3

    def __init__(self, simulators: Sequence[Simulator], scene_seeds: Sequence[int], *, seed: int) -> None:
        for simulator, scene_seed in zip(simulators, scene_seeds, strict=True):
            simulator.stand_in(scene_seed)
        self._simulators, self._seed, self._episode = simulators, seed, 0
        self._goals = np.stack([each.goal for each in simulators])

    def begin(self) -> np.ndarray:
        places = []
        for number, simulator in enumerate(self._simulators):
            chance = np.random.default_rng((self._seed, number // GROUP_SIZE, self._episode))
            places.append(simulator.begin(int(chance.integers(len(simulator.initial_states)))))
        self._episode += 1
        return self._seen(np.stack(places))

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pairs = zip(self._simulators, actions, strict=True)
        places = np.stack([simulator.move(action) for simulator, action in pairs])
        rewards = -np.linalg.norm(self._goals - places, axis=1).astype(np.float32)
        return self._seen(places), rewards, np.zeros(len(places), dtype=bool)

    def _seen(self, places: np.ndarray) -> np.ndarray:
        points = np.concatenate([places - MIDDLE_M, self._goals - MIDDLE_M], axis=1)
        return (points / UNIT_M).astype(np.float32)


def settings_of(seed: int, batches: int = BATCH_COUNT) -> LocalSettings:
    """Return the settings of a run; those of RLinf's example of GRPO where both have them."""
    samples = ENV_COUNT * DECISIONS_PER_EPISODE
    return LocalSettings(
        algorithm="grpo",
        asynchrony=AsyncConfig.from_mapping({"mode": "lean"}),
        total_envs=ENV_COUNT,
        group_size=GROUP_SIZE,
        horizon=DECISIONS_PER_EPISODE,
        batches=batches,
        global_batch_size=samples // 2,
        micro_batch_size=samples // 2,
        update_epoch=2,
        lr=LEARNING_RATE,
        seed=seed,
        horizon_ends=True,
        weighting="episode",
    )


def run(
    simulators: Sequence[Simulator], arm: str, seed: int, *, batches: int = BATCH_COUNT
) -> dict[str, Any]:
    """Train with `ENV_COUNT` simulators; return the row of the run."""
    began_s = time.process_time()
    stage = Stages(count=1, size=ENV_COUNT, seed=seed, shared_scene=ARMS[arm])
    environments = Reaching(simulators, stage.scene_seeds(0, GROUP_SIZE), seed=seed)
    result = LocalTrainer(settings_of(seed, batches), lambda first, size: environments, POLICY).run()
    returns = [metrics["env/return"] for metrics in result.metrics]
    return {
        "arm": arm,
        "seed": seed,
        "returns": [round(value, 5) for value in returns],
        "unseen": round(unseen_return(simulators, result.weights), 5),
        "cpu_seconds": round(time.process_time() - began_s, 1),
    }


@torch.no_grad()
def unseen_return(simulators: Sequence[Simulator], weights: Mapping[str, torch.Tensor]) -> float:
    """Return the mean of returns in the unseen scenes; all policies have the same noise."""
    policy = POLICY(state_dim=Reaching.state_dim, action_dim=Reaching.action_dim)
    policy.load_state_dict(dict(weights))
    environments = Reaching(simulators, UNSEEN_SCENE_SEEDS, seed=UNSEEN_SCENE_SEEDS[0])
    chance = torch.Generator().manual_seed(UNSEEN_SCENE_SEEDS[0])
    states, total = environments.begin(), np.zeros(ENV_COUNT)
    for _ in range(DECISIONS_PER_EPISODE):
        noise = torch.randn(ENV_COUNT, Reaching.action_dim, generator=chance)
        states, rewards, _ = environments.decide(policy.sample(torch.from_numpy(states), noise).numpy())
        total += rewards
    return float(total.mean())


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


def unseen(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean returns of both arms in the unseen scenes, in words; empty before the last run."""
    if list(missing(rows)):
        return ""
    means = {arm: np.mean([row["unseen"] for row in rows if row["arm"] == arm]) for arm in ARMS}
    return "return in unseen scenes: " + ", ".join(f"{arm} {mean:+.3f} m" for arm, mean in means.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only print the verdict")
    parser.add_argument("--rehearse", type=int, metavar="BATCHES", help="one run of another seed, not stored")
    options = parser.parse_args()
    if not options.report:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            prepare_libero(Path(os.environ[ASSETS_VARIABLE]), Path(folder))
            simulators = [Simulator() for _ in range(ENV_COUNT)]
            if options.rehearse:
                for arm in ARMS:
                    print(run(simulators, arm, REHEARSAL_SEED, batches=options.rehearse), flush=True)
                return
            for seed, arm in missing(read_rows(RESULTS_FILE)):
                add_row(RESULTS_FILE, run(simulators, arm, seed))
    rows = read_rows(RESULTS_FILE)
    print(verdict(rows))
    if said := unseen(rows):
        print(said)


if __name__ == "__main__":
    main()
