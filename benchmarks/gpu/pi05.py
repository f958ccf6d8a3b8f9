"""pi0.5 in its real size under RLinf, three ways by turns: `python -m benchmarks.gpu.pi05 --rlinf FOLDER`.

The ways are RLinf's synchronous loop, its asynchronous PPO, and `full`, each by the script of RLinf's
checkout in FOLDER and its config `metaworld_50_ppo_openpi_pi05`, all on one GPU, with random weights. They
take turns until the minutes are used up; no run begins when there is less time left than the slowest one
so far has taken. After each run its row is in results/pi05.jsonl, and results/pi05.md is written anew.

Needed: an environment in which RLinf's script runs with openpi and Meta-World, and one CUDA device. `--tiny`
is a rehearsal on any machine, with a model of a few layers, whose numbers mean nothing and are not kept.
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

from benchmarks import kept
from benchmarks.gpu.openpi_files import write_checkpoint, write_tokenizer
from rlinf_async.lab.process import OWN_CLUSTER, run_command, tail
from rlinf_async.lab.sweep.steps import STOCK_LEARNER, STOCK_ROLLOUT, WARM_UP, read_scalars
from rlinf_async.lab.table import markdown

RESULTS = Path(__file__).parent / "results"
ROWS, PAGE = RESULTS / "pi05.jsonl", RESULTS / "pi05.md"
CONFIG = "metaworld_50_ppo_openpi_pi05"
DATA, STATE_DIM, ACTION_DIM, CHUNK = "lerobot/metaworld_mt50", 4, 4, 5
ASYNC_PPO = (
    "algorithm.loss_type=decoupled_actor_critic",
    "+algorithm.staleness_threshold=1",
    "+algorithm.rollout_store_size_per_rank=1",
)
DEADLINE_S = 400.0
SPARE_S = 20.0
"""Seconds of the minutes that no run may count with."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train: a script of RLinf's and what to give it."""

    name: str
    script: str
    overrides: tuple[str, ...]


WAYS = (
    Way(name="off", script="train_embodied_agent.py", overrides=()),
    Way(name="async-ppo", script="train_async.py", overrides=ASYNC_PPO),
    Way(name="full", script="train_embodied_agent.py", overrides=("+async.mode=full",)),
)
TINY = (
    "actor.fsdp_config.strategy=fsdp2",  # FSDP1 asks for an accelerator
    "+actor.model.openpi.action_expert_variant=tiny_expert",
    "+actor.model.openpi.paligemma_variant=tiny_vlm_2048",
)
"""Sizes that the rehearsal's `PYTHONPATH` gives openpi (`tests/vla/site`)."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What all ways share."""

    envs: int = 16
    decisions: int = 6
    micro_batch: int = 16
    update_epochs: int = 1
    steps: int = 5

    @property
    def overrides(self) -> tuple[str, ...]:
        """Of the config; one optimizer step for each update epoch."""
        episode = self.decisions * CHUNK
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
    """The most that the GPU held, as `nvidia-smi` says; asked about once a second."""

    def __init__(self) -> None:
        self.most_mib = 0

    def look(self) -> None:
        """Ask once; nothing where there is no `nvidia-smi`."""
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        except (OSError, subprocess.SubprocessError):
            return
        self.most_mib = max(self.most_mib, *map(int, said.split()))


def run(way: Way, sizes: Sizes, tree: Path, place: Path, *, tiny: bool) -> dict[str, Any]:
    """Train once.

    Raises:
        RuntimeError: the run failed; the end of its output.
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
            *("--config-path", str(embodied / "config"), "--config-name", CONFIG),
            *(*sizes.overrides, *weights, *(TINY if tiny else ()), *way.overrides),
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
    """The steps of the first of `names` that the run has logged."""
    found = next((scalars[name] for name in names if name in scalars), {})
    return [round(value, 3) for value in found.values()]


def _sums(scalars: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> list[float]:
    parts = [list(scalars[name].values()) for name in names if name in scalars]
    return [round(sum(values), 3) for values in zip(*parts, strict=False)]


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def prepare(place: Path) -> None:
    """Write what RLinf and openpi read besides the config."""
    write_tokenizer(place / "openpi")
    write_checkpoint(place / "checkpoint", data=DATA, state_dim=STATE_DIM, action_dim=ACTION_DIM)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each way, over all its runs of the last row's sizes and device."""
    like = rows[-1]
    same = [row for row in rows if (row["sizes"], row["device"]) == (like["sizes"], like["device"])]
    by_way = {way.name: [row for row in same if row["way"] == way.name] for way in WAYS}
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
            f"`{CONFIG}`, one {like['device']}; {sizes}. Seconds are the mean of a run's steps after the "
            "first: the median over runs, the least and the most.\n",
            markdown(head, lines),
            "",
        ]
    )


def _seconds(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """The mean step of each run; the first step of a run is not measured."""
    return [statistics.fmean(row["step_s"][WARM_UP:]) for row in runs]


def _shares(runs: Sequence[Mapping[str, Any]]) -> str:
    """Of env, inference and learner, as far as a way reports them."""
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
    """Call `once` with each way in turn until the next call would not end in time; how many calls."""
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
    """Run by turns, and write the page."""
    parser = argparse.ArgumentParser(description="see the module")
    parser.add_argument("--rlinf", type=Path, required=True, help="a checkout of RLinf")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS])
    parser.add_argument("--tiny", action="store_true")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    asked = parser.parse_args(arguments)
    sizes = Sizes(**{name: getattr(asked, name) for name in vars(Sizes())})
    ways = [way for way in WAYS if way.name in (asked.ways or [one.name for one in WAYS])]
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
                kept.add_row(ROWS, row)
                PAGE.write_text(page(kept.rows(ROWS)))

        by_turns(ways, asked.minutes, once)
    print(page(rows))


if __name__ == "__main__":
    main()
