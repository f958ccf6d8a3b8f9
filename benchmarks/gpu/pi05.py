"""Measure pi0.5 in its real size under RLinf, three ways by turns.

    python -m benchmarks.gpu.pi05 --rlinf FOLDER

The ways are RLinf's synchronous loop, its asynchronous PPO, and `full`. Each uses a script of RLinf's
checkout in FOLDER and its config `metaworld_50_ppo_openpi_pi05`, on one GPU, with random weights. The ways
take turns until `--minutes` are used up; no run begins with less time left than the slowest run so far has
taken. After each run its row is in results/pi05.jsonl, and results/pi05.md is written anew.

The command needs an environment that runs RLinf's scripts with openpi and Meta-World, and one CUDA device.
`--tiny` makes a trial run on any machine, with a model of a few layers; its numbers mean nothing and are not
stored.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import result_store
from benchmarks.gpu.openpi_files import write_checkpoint, write_tokenizer
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import STOCK_LEARNER, STOCK_ROLLOUT, read_scalars
from rlinf_async.lab.table import markdown

RESULTS_FOLDER = Path(__file__).parent / "results"
ROWS_FILE, PAGE_FILE = RESULTS_FOLDER / "pi05.jsonl", RESULTS_FOLDER / "pi05.md"
CONFIG_NAME = "metaworld_50_ppo_openpi_pi05"
DATA_SET, STATE_DIM, ACTION_DIM, CHUNK_ACTIONS = "lerobot/metaworld_mt50", 4, 4, 5
ASYNC_PPO_OVERRIDES = (
    "algorithm.loss_type=decoupled_actor_critic",
    "+algorithm.staleness_threshold=1",
    "+algorithm.rollout_store_size_per_rank=1",
)
WARM_UP = 1
"""Unmeasured steps at the start of a run."""
DEADLINE_S = 400.0
SPARE_S = 20.0
"""Seconds at the end of `--minutes` that no run may use."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train: a script of RLinf, and overrides of its config."""

    name: str
    script: str
    overrides: tuple[str, ...]


TRAINING_WAYS = (
    Way(name="off", script="train_embodied_agent.py", overrides=()),
    Way(name="async-ppo", script="train_async.py", overrides=ASYNC_PPO_OVERRIDES),
    Way(name="full", script="train_embodied_agent.py", overrides=("+async.mode=full",)),
)
TINY_OVERRIDES = (
    "actor.fsdp_config.strategy=fsdp2",  # FSDP1 needs an accelerator
    "+actor.model.openpi.action_expert_variant=tiny_expert",
    "+actor.model.openpi.paligemma_variant=tiny_vlm_2048",
)
"""Overrides of `--tiny`; `tests/vla/site` on the `PYTHONPATH` adds these variants to openpi."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a run, equal for all ways."""

    envs: int = 16
    decisions: int = 6
    micro_batch: int = 16
    update_epochs: int = 1
    steps: int = 5

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of the config, with one optimizer step for each update epoch."""
        episode = self.decisions * CHUNK_ACTIONS
        return (
            *(f"++env.{part}.{key}" for part in ("train", "eval") for key in ("video_cfg.save_video=false",)),
            f"env.train.total_num_envs={self.envs}",
            f"env.eval.total_num_envs={self.envs}",
            "env.train.rollout_epoch=1",
            f"++env.train.max_episode_steps={episode}",
            f"++env.train.max_steps_per_rollout_epoch={episode}",
            f"actor.micro_batch_size={self.micro_batch}",
            f"actor.global_batch_size={self.envs * self.decisions}",
            f"algorithm.update_epoch={self.update_epochs}",
            f"runner.max_epochs={self.steps}",
            "runner.save_interval=-1",
            "runner.val_check_interval=-1",
        )


class Memory:
    """The peak of the GPU's used memory in MiB, from `nvidia-smi`, sampled about once a second."""

    def __init__(self) -> None:
        self.most_mib = 0

    def look(self) -> None:
        """Take a sample; without `nvidia-smi`, do nothing."""
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        except (OSError, subprocess.SubprocessError):
            return
        self.most_mib = max(self.most_mib, *map(int, said.split()))


def run(way: Way, sizes: Sizes, tree: Path, place: Path, *, tiny: bool) -> dict[str, Any]:
    """Train once, and return the row of the run.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    embodied, directory = tree / "examples" / "embodiment", place / f"{way.name}-{time.time_ns()}"
    directory.mkdir()
    weights = [f"{part}.model.model_path={place / 'checkpoint'}" for part in ("actor", "rollout")]
    memory, began = Memory(), time.monotonic()
    log = directory / "output.log"
    status = run_command(
        [
            sys.executable,
            str(embodied / way.script),
            *("--config-path", str(embodied / "config"), "--config-name", CONFIG_NAME),
            *(*sizes.overrides, *weights, *(TINY_OVERRIDES if tiny else ()), *way.overrides),
            f"runner.logger.log_path={directory}",
        ],
        log,
        environment={
            **OWN_CLUSTER,
            "EMBODIED_PATH": str(embodied),
            "OPENPI_DATA_HOME": str(place / "openpi"),
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(tree)))),
        },
        deadline_s=DEADLINE_S,
        tick=memory.look,
    )
    if status:
        raise RuntimeError(f"{way.name} ended with status {status}: {tail(log, 3000)}")
    scalars = read_scalars(directory)
    return {
        "way": way.name,
        "sizes": vars(sizes),
        "device": _device(),
        "wall_s": round(time.monotonic() - began, 1),
        "peak_gib": round(memory.most_mib / 1024, 1),
        "step_s": _values(scalars, "time/step", "async/step_seconds"),
        "rollout_s": _sums(scalars, STOCK_ROLLOUT),
        "learner_s": _sums(scalars, STOCK_LEARNER),
        "busy": {part: _values(scalars, f"async/busiest/{part}") for part in ("env", "inference", "learner")},
    }


def _values(scalars: Mapping[str, Mapping[int, float]], *names: str) -> list[float]:
    """Return the values, one a step, of the first of `names` that the run has logged."""
    found = next((scalars[name] for name in names if name in scalars), {})
    return [round(value, 3) for value in found.values()]


def _sums(scalars: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> list[float]:
    parts = [list(scalars[name].values()) for name in names if name in scalars]
    return [round(sum(values), 3) for values in zip(*parts, strict=False)]


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def prepare(place: Path) -> None:
    """Write the files that RLinf and openpi read besides the config."""
    write_tokenizer(place / "openpi")
    write_checkpoint(place / "checkpoint", data=DATA_SET, state_dim=STATE_DIM, action_dim=ACTION_DIM)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: a table line for each way, over all runs with the last row's sizes and device."""
    like = rows[-1]
    same = [row for row in rows if (row["sizes"], row["device"]) == (like["sizes"], like["device"])]
    by_way = {way.name: [row for row in same if row["way"] == way.name] for way in TRAINING_WAYS}
    base = _seconds(by_way["off"])
    head = ["way", "runs", "s a step", "over `off`", "peak memory", "where time goes, shares of a step"]
    lines = []
    for name, runs in by_way.items():
        if runs:
            seconds = _seconds(runs)
            middle = statistics.median(seconds)
            times = f"{statistics.median(base) / middle:.2f}" if base else ""
            spread = f"{middle:.2f} [{min(seconds):.2f}, {max(seconds):.2f}]"
            memory = f"{max(row['peak_gib'] for row in runs)} GiB"
            lines.append([f"`{name}`", str(len(runs)), spread, times, memory, _shares(runs)])
    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in like["sizes"].items())
    return "\n".join(
        [
            "# pi0.5 in its real size under RLinf\n",
            "Generated by `python -m benchmarks.gpu.pi05` from [pi05.jsonl](pi05.jsonl); random weights, "
            f"`{CONFIG_NAME}`, one {like['device']}; {sizes}. Seconds are the mean of a run's steps after "
            "the first: the median over runs, the least and the most.\n",
            markdown(head, lines),
            "",
        ]
    )


def _seconds(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the mean step seconds of each run, without its first step."""
    return [statistics.fmean(row["step_s"][WARM_UP:]) for row in runs]


def _shares(runs: Sequence[Mapping[str, Any]]) -> str:
    """Name the time shares of env, inference and learner, or of rollout and learner for RLinf's own loops."""
    found = []
    for part in ("env", "inference", "learner"):
        values = [value for row in runs for value in row["busy"][part][WARM_UP:]]
        found += [f"{part} {statistics.fmean(values):.0%}"] if values else []
    if found:
        return ", ".join(found)
    total = sum(sum(row["step_s"][WARM_UP:]) for row in runs)
    for part, key in (("rollout", "rollout_s"), ("learner", "learner_s")):
        spent = sum(sum(row[key][WARM_UP:]) for row in runs)
        found += [f"{part} {spent / total:.0%}"] if spent else []
    return ", ".join(found)


def by_turns(ways: Sequence[Way], minutes: float, once: Any, clock: Any = time.monotonic) -> int:
    """Call `once` with each way in turn until the next call would not end in time; return the number of
    calls.
    """
    began, slowest, calls = clock(), 0.0, 0
    while True:
        for way in ways:
            left = minutes * 60 - SPARE_S - (clock() - began)
            if calls and left < slowest:
                return calls
            start = clock()
            once(way)
            slowest, calls = max(slowest, clock() - start), calls + 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ways by turns, and write the page."""
    parser = argparse.ArgumentParser(
        description="Measure pi0.5 in its real size under RLinf, three ways by turns."
    )
    parser.add_argument("--rlinf", type=Path, required=True, help="a checkout of RLinf")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in TRAINING_WAYS])
    parser.add_argument("--tiny", action="store_true")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    asked = parser.parse_args(arguments)
    sizes = Sizes(**{name: getattr(asked, name) for name in vars(Sizes())})
    ways = [way for way in TRAINING_WAYS if way.name in (asked.ways or [one.name for one in TRAINING_WAYS])]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place)

        def once(way: Way) -> None:
            row = run(way, sizes, asked.rlinf.resolve(), place, tiny=asked.tiny)
            print(
                f"{way.name}: {row['step_s']} s a step, {row['peak_gib']} GiB, {row['wall_s']} s", flush=True
            )
            rows.append(row)
            if not asked.tiny:
                result_store.add_row(ROWS_FILE, row)
                PAGE_FILE.write_text(page(result_store.read_rows(ROWS_FILE)))

        by_turns(ways, asked.minutes, once)
    print(page(rows))


if __name__ == "__main__":
    main()
