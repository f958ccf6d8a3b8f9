"""Asynchronous PPO on Meta-World in one process: no Ray, no RLinf, no GPU; a few minutes on two cores.

    OMP_NUM_THREADS=1 python examples/local_metaworld.py

A robot arm learns to press a button. It starts from a clone of a scripted expert that is good enough to
succeed now and then, and improves by reward alone: one, once, when the button is down.
"""

from pathlib import Path

import torch

from rlinf_async.config.checked import checked_config
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.local_metaworld import metaworld
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings
from rlinf_async.lab.demo.warm_start import warm_start
from rlinf_async.lab.demo.warm_start_settings import WarmStart
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog

RUN_DIR = Path("runs/local_metaworld")

# The whole of the asynchrony. Try off, train, rollout or streamer, and compare the columns.
ASYNC = checked_config({"mode": "full"})

SETTINGS = LocalSettings(
    algorithm="ppo",
    asynchrony=ASYNC,
    # 32 arms, which level 2 splits into two shards: one is simulated while the other asks the policy.
    total_envs=32,
    horizon=20,
    batches=30,
    # A batch of 640 decisions is trained 8 times, in 4 optimizer steps each.
    global_batch_size=160,
    micro_batch_size=160,
    update_epoch=8,
    seed=1234,
)


def main() -> None:
    display = RunDisplay()
    log = RunLog(RunDir(RUN_DIR), display=display)
    display.note("cloning the expert, unless an earlier run has left its clone behind")
    start = warm_start(WarmStart(max_episode_steps=SETTINGS.horizon), RUN_DIR / "warm_start")

    task = TaskSettings("button-press-topdown-v3", max_episode_steps=SETTINGS.horizon)
    host = LocalTrainer(
        SETTINGS,
        # A process per shard: simulators in threads would share one interpreter lock with the learner.
        metaworld(task, obs_stats=start.obs_stats_path, seed=SETTINGS.seed, processes=1),
        GaussianPolicy,
        weights=torch.load(start.policy_path),
        on_step=log.step,
    )
    title = f"PPO, mode {ASYNC.mode}; staleness at most {ASYNC.max_staleness}; start {start.success:.0%}"
    display.start(title, step=0, total=SETTINGS.batches)
    try:
        result = host.run()
    finally:
        display.stop()

    torch.save(result.weights, RUN_DIR / "policy.pt")
    log.finish(result.ledger)


if __name__ == "__main__":
    main()
