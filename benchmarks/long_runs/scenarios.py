"""The runs under faults, each with its result and verdict."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos.__main__ import RESTART_BUDGETS
from benchmarks.chaos.driver import newest_of, steps_of
from benchmarks.chaos.runs import DEMO_BY_HOST, ONE_OF_EACH, Outcome, restarting, training
from benchmarks.chaos.victims import Killer, processes, simulators_of
from benchmarks.chaos.watch import family
from benchmarks.long_runs.held import Look, growth, look, steepest
from rlinf_async.lab.process import OWN_CLUSTER, last_words
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir

MOST_GROWTH_PER_MINUTE = 0.01
"""Allowed growth per minute, as a share."""
ENDLESS_STEPS = 1_000_000
LOOK_INTERVAL_S = 5.0
FIRST_STEP = 3
END_DEADLINE_S = 120.0
"""Seconds that a run has to end after SIGTERM."""
STEPS_DEADLINE_S = 900.0
"""Seconds that a run has to train its first steps, on a busy machine."""
SMALL_OVERRIDES = (
    "~warm_start",
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=4",
    "env.train.action_repeat=1",
    "actor.micro_batch_size=8",
    "actor.global_batch_size=16",
    "algorithm.update_epoch=1",
)
STEP_COUNT = 8
"""Steps of a run with one killed process, and of the two runs on one cluster."""
LOCAL_DEMO = (
    "-n",
    "local/point_reach",
    "env.env_class=metaworld_task",
    "+env.env_type=metaworld",
    "+env.task_name=button-press-topdown-v3",
    "+env.action_repeat=5",
    "+env.reward_kind=sparse",
    "+env.reward_scale=1.0",
    "+env.image_size=null",
    "+env.obs_stats=null",
    "+env.processes=1",
    "env.max_episode_steps=20",
    "model.obs_dim=39",
    "model.action_dim=4",
    "settings.total_envs=8",
    "settings.horizon=20",
    "settings.global_batch_size=160",
)
"""Config and overrides of the local host with Meta-World's simulators in processes of their own."""

Result = dict[str, Any]


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a session of its own; after the block, all its processes are gone."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **OWN_CLUSTER, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], Any], *, within_s: float) -> Any:
    """Wait until `condition()` is true, and return its value; None if the process ends before.

    Raises:
        TimeoutError: neither has happened within `within_s` seconds.
    """
    began = time.monotonic()
    while not (found := condition()):
        if process.poll() is not None:
            return None
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"the awaited condition has not come true within {within_s:g} s")
        time.sleep(0.5)
    return found


def ended(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM to a run, and return its exit status."""
    process.send_signal(signal.SIGTERM)
    return process.wait(END_DEADLINE_S)


def kills(host: str, directory: Path, *, minutes: float, every_s: float) -> Result:
    """Kill a process of a run every `every_s` seconds, and measure the growth of all processes meanwhile."""
    if host == "local":
        command = [
            *(
                sys.executable,
                "-m",
                "rlinf_async.cli",
                "train",
                *LOCAL_DEMO,
                "async.survive.env_restarts=1000",
            ),
            *("async.advanced.window_s=60", f"run_dir={directory}", f"settings.batches={ENDLESS_STEPS}"),
        ]
        directory.mkdir(parents=True)
    else:
        command = training(
            directory, [*DEMO_BY_HOST[host].settings, *RESTART_BUDGETS], steps=ENDLESS_STEPS, host=host
        )
    log = directory.with_suffix(".log")
    with running(command, log) as process:
        began = wait_for(process, lambda: len(steps_of(directory)) >= FIRST_STEP, within_s=STEPS_DEADLINE_S)
        if began is None:
            return {"passed": False, "status": process.returncode, "said": _said(log)}
        stop = _killing(host, process.pid, directory, every_s)
        looks = _looks(process, minutes * 60)
        killed = stop()
        alive = process.poll() is None
        status = ended(process) if alive else process.returncode
    outcome = Outcome.of(directory, status=status, killed=killed).as_dict()
    slopes = {what: growth(looks, what) for what in ("memory", "descriptors", "shared")}
    worst = {what: steepest(shares, what) for what, shares in slopes.items()}
    flat = all(share <= MOST_GROWTH_PER_MINUTE for _, share in worst.values())
    return {
        "passed": alive and flat and outcome["unaccounted"] == 0 and bool(killed),
        "minutes": round((looks[-1].seconds - looks[0].seconds) / 60, 2),
        "every_s": every_s,
        "alive_at_the_end": alive,
        "steepest_a_minute": worst,
        "slopes_a_minute": slopes,
        "first": _totals(looks[0]),
        "last": _totals(looks[-1]),
        "outcome": outcome,
        "said": _said(log),
    }


def _looks(process: subprocess.Popen[bytes], seconds: float) -> list[Look]:
    began = time.monotonic()
    looks = [look(process.pid, seconds=0.0)]
    while process.poll() is None and (now := time.monotonic() - began) < seconds:
        time.sleep(LOOK_INTERVAL_S)
        looks.append(look(process.pid, seconds=now + LOOK_INTERVAL_S))
    return looks


def _said(log: Path) -> str:
    """Return the last words of a run, with paths relative to the working directory: results are published."""
    return last_words(log).replace(f"{Path.cwd()}/", "")


def _totals(one: Look) -> dict[str, float]:
    return {what: round(sum(getattr(one, what).values()), 1) for what in ("memory", "descriptors", "shared")}


def _killing(host: str, pid: int, directory: Path, every_s: float) -> Callable[[], list[str]]:
    """Start to kill; return a function that stops the killing and returns the killed processes' kinds."""
    if host != "local":
        killer = Killer(directory, every_s=every_s, first_step=0, seed=0, kinds=DEMO_BY_HOST[host].kinds)
    else:
        # The killer draws a kind, but every kind stands for the run's simulators.
        killer = SimulatorKiller(directory, every_s=every_s, first_step=0, seed=0)
        killer.parent = pid
    killer.start()

    def stop() -> list[str]:
        killer.stop()
        return [victim.kind for victim in killer.killed]

    return stop


class SimulatorKiller(Killer):
    """Kills simulators of the local host; apart from these, such a run is one process."""

    parent: int

    def candidates(self, kind: str) -> list[Any]:
        return simulators(self.parent)


def simulators(pid: int) -> list[Any]:
    """Return the simulators of a process as victims."""
    from benchmarks.chaos.victims import SIMULATOR_KIND, Victim
    from rlinf_async.observe.spans import identity

    return [
        Victim(SIMULATOR_KIND, "of the run", child, now["started"])
        for child in simulators_of(pid)
        if (now := identity(child)) is not None
    ]


def one_killed(victim: str, directory: Path) -> Result:
    """Kill one process of a run with `--restarts` after its third step; the run has to train all steps.

    `victim` is the name of a process in the run's records, `raylet`, or `simulator`.
    """
    settings = [
        *ONE_OF_EACH,
        *SMALL_OVERRIDES,
        "runner.save_interval=2",
        "env.train.processes=1",
        *restarting(2),
    ]
    command = training(directory, settings, steps=STEP_COUNT)
    log = directory.with_suffix(".log")
    with running(command, log) as process:

        def victim_pid() -> int | None:
            return _pid_of(victim, process.pid, directory) if len(steps_of(directory)) >= FIRST_STEP else None

        pid = wait_for(process, victim_pid, within_s=STEPS_DEADLINE_S)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        status = process.wait(STEPS_DEADLINE_S)
        seconds = time.monotonic() - began
        left = _left_of(process.pid)
    outcome = Outcome.of(directory, status=status, killed=[victim] if pid else [])
    steps = [step["step"] for step in RunReader(directory).metrics()]
    return {
        "passed": status == 0
        and pid is not None
        and steps == list(range(1, STEP_COUNT + 1))
        and outcome.unaccounted == 0
        and not left,
        "seconds_after_the_kill": round(seconds, 1),
        "steps": steps,
        "left_behind": left,
        "outcome": asdict(outcome),
        "faults": _faults(directory),
    }


def _pid_of(victim: str, pid: int, directory: Path) -> int | None:
    if victim == "raylet":
        names = {child: Path(f"/proc/{child}/comm") for child in family(pid)}
        return next(
            (child for child, comm in names.items() if comm.exists() and "raylet" in comm.read_text()), None
        )
    found = processes(directory)
    if victim == "simulator":
        worker = found.get("env worker 0", {}).get("pid")
        return next(iter(simulators_of(worker)), None) if worker else None
    number: int | None = found.get(victim, {}).get("pid")
    return number


def _left_of(session: int) -> list[str]:
    """Return the commands of a session that are still alive ten seconds after its leader has ended."""
    began = time.monotonic()
    while True:
        shown = subprocess.run(
            ["ps", "-s", str(session), "-o", "stat=,args="], capture_output=True, text=True, check=False
        ).stdout
        left = [line.split(None, 1)[1][:80] for line in shown.splitlines() if not line.startswith("Z")]
        if not left or time.monotonic() - began > 10:
            return left
        time.sleep(0.5)


def _faults(directory: Path) -> list[str]:
    file = RunDir(directory).failures
    lines = file.read_text().splitlines() if file.exists() else []
    return [f"{one.get('process')}: {one.get('what')}: {one.get('action')}" for one in map(json.loads, lines)]


def resumed_beside_its_writer(directory: Path) -> Result:
    """Resume from the checkpoints of a run that still writes them, in a directory of its own; a resume in the
    writer's directory has to be refused.
    """
    first, second = directory / "first", directory / "second"
    saving = [*ONE_OF_EACH, *SMALL_OVERRIDES, "runner.save_interval=1"]
    command = training(first, saving, steps=ENDLESS_STEPS)
    parent = first / "metaworld_ppo_mlp" / "checkpoints"
    with running(command, directory / "first.log") as writer:
        wait_for(writer, lambda: newest_of(first) >= 2, within_s=STEPS_DEADLINE_S)
        whose = [f"runner.logger.log_path={first}", f"runner.max_epochs={ENDLESS_STEPS}"]
        base = [sys.executable, "-m", "rlinf_async.cli", "train", *saving]
        refused = subprocess.run(
            [*base, *whose, "runner.resume_dir=auto"],
            capture_output=True,
            text=True,
            env={**os.environ, **OWN_CLUSTER},
            timeout=END_DEADLINE_S,
            check=False,
        )
        begun_at = newest_of(first)
        resumed = training(
            second, [*saving, f"runner.resume_dir={parent}/global_step_{begun_at}"], steps=begun_at + 3
        )
        with running(resumed, directory / "second.log") as other:
            status = other.wait(STEPS_DEADLINE_S)
        writer_status = ended(writer)
    steps = [step["step"] for step in RunReader(second).metrics()]
    outcomes = {
        "writer": asdict(Outcome.of(first, status=writer_status, killed=[])),
        "resumed": asdict(Outcome.of(second, status=status, killed=[])),
    }
    return {
        "passed": status == 0
        and refused.returncode == 2
        and writer_status == 128 + signal.SIGTERM
        and steps == [begun_at + 1, begun_at + 2, begun_at + 3]
        and all(one["unaccounted"] == 0 for one in outcomes.values()),
        "refused": {"status": refused.returncode, "said": (refused.stdout + refused.stderr).strip()[-300:]},
        "resumed_at": begun_at,
        "steps": steps,
        "outcomes": outcomes,
        "said": _said(directory / "second.log"),
    }


def two_on_one_cluster(directory: Path) -> Result:
    """Make two runs at once on one Ray cluster that neither of them has started."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    port = random.SystemRandom().randrange(20000, 30000)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("RAY_ADDRESS", None)
    head = subprocess.Popen(
        [*ray, "start", "--head", "--block", f"--port={port}", "--num-cpus=8", "--include-dashboard=false"],
        env=environment,
        stdout=(directory / "cluster.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # The cluster asks for the token of this account, if there is one.
    where = {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "token"}
    names = ("first", "second")
    try:
        wait_for(head, lambda: "--block" in (directory / "cluster.log").read_text(), within_s=END_DEADLINE_S)
        commands = {
            name: training(directory / name, [*ONE_OF_EACH, *SMALL_OVERRIDES], steps=STEP_COUNT)
            for name in names
        }
        with (
            running(commands["first"], directory / "first.log", where) as first,
            running(commands["second"], directory / "second.log", where) as second,
        ):
            statuses = {"first": first.wait(STEPS_DEADLINE_S), "second": second.wait(STEPS_DEADLINE_S)}
        alive = head.poll() is None
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
    outcomes = {
        name: asdict(Outcome.of(directory / name, status=statuses[name], killed=[])) for name in names
    }
    return {
        "passed": alive
        and all(one["status"] == 0 and one["unaccounted"] == 0 for one in outcomes.values())
        and all(one["steps"] == STEP_COUNT for one in outcomes.values()),
        "cluster_lives": alive,
        "outcomes": outcomes,
        "said": {name: _said(directory / f"{name}.log") for name in names},
    }
