"""The runs of the benchmark, every mode in turn several times, and the rows of their results."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu import simulators
from benchmarks.gpu.passes import CudaClock, HostClock, Passes, Span, filled
from benchmarks.gpu.policy import CHUNK_ACTIONS, Size, VlaPolicy, vla
from rlinf_async.config import MODE_LEVELS, AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.observe.state import RunState, Sums

BASE_MODE = "off"
"""The synchronous loop; every other mode is compared with it."""

Run = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The settings of the benchmark.

    A run has `warmup` unmeasured batches before the measured `batches`, and one after them.
    """

    modes: tuple[str, ...] = tuple(MODE_LEVELS)
    envs: str = "emulated"
    device: str = "cuda"
    params: int = 500_000_000
    decision_ms: float = 50.0
    total_envs: int = 32
    env_workers: int = 4
    horizon: int = 20
    micro_batch: int = 32
    optimizer_steps: int = 1
    measure_ratios: bool = True
    max_wait_ms: float | None = None
    """`async.rollout.max_wait_ms` of the modes with level 2; None keeps its default."""
    warmup: int = 2
    batches: int = 4
    repetitions: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODE_LEVELS:
                raise ValueError(f"mode {mode!r} must be one of {', '.join(MODE_LEVELS)}")
        if self.envs not in ("emulated", "metaworld"):
            raise ValueError(f"envs={self.envs!r} must be emulated or metaworld")
        if self.envs == "metaworld" and find_spec("metaworld") is None:
            raise ValueError(
                "envs='metaworld' needs the metaworld package: pip install metaworld==3.1.1, or use emulated"
            )
        self._check_device()
        if self.decision_ms <= 0:
            raise ValueError(f"decision_ms={self.decision_ms} must be positive")
        for name in ("total_envs", "optimizer_steps", "warmup", "batches", "repetitions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        Size.of(self.params)
        self.settings(BASE_MODE)

    def _check_device(self) -> None:
        if self.device not in ("cuda", "cpu"):
            raise ValueError(f"device={self.device!r} must be cuda or cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device='cuda' needs a CUDA device, and torch sees none; "
                "for a trial run on the CPU: --device cpu --params 100000 --quick"
            )

    @property
    def order(self) -> tuple[str, ...]:
        """The modes in the order of a repetition; the synchronous mode always runs, and runs first."""
        return (BASE_MODE, *(mode for mode in dict.fromkeys(self.modes) if mode != BASE_MODE))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the policy: bfloat16 on a GPU; most CPUs are too slow at it, and use float32."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def settings(self, mode: str) -> LocalSettings:
        samples = self.total_envs * self.horizon
        return LocalSettings(
            asynchrony=AsyncConfig.from_mapping(
                {
                    "mode": mode,
                    "advanced": {"measure_ratios": self.measure_ratios, "deadline_s": 600},
                    "rollout": {} if self.max_wait_ms is None else {"max_wait_ms": self.max_wait_ms},
                }
            ),
            total_envs=self.total_envs,
            env_workers=self.env_workers,
            horizon=self.horizon,
            batches=self.warmup + self.batches + 1,
            global_batch_size=samples // self.optimizer_steps,
            micro_batch_size=self.micro_batch,
            lr=1e-5,
            value_lr=1e-5,
            seed=self.seed,
        )

    def environments(self) -> EnvFactory:
        if self.envs == "emulated":
            return simulators.emulated(self.decision_ms / 1e3, seed=self.seed)
        return simulators.metaworld(total=self.total_envs, horizon=self.horizon, seed=self.seed)


def run(bench: Bench, mode: str) -> Run:
    """Train in `mode`; return rates, busy shares and peak memory of the measured batches."""
    _forget(bench)
    passes = Passes(CudaClock(bench.device) if bench.device == "cuda" else HostClock())
    published = []
    host = LocalTrainer(
        bench.settings(mode),
        bench.environments(),
        vla(bench.params, device=bench.device, dtype=bench.dtype),
        on_step=lambda report, _: published.append(time.perf_counter()),
    )
    with passes.recorded(VlaPolicy):
        result = host.run()
    last = bench.warmup + bench.batches
    window = published[bench.warmup - 1], published[last - 1]
    return {
        **_rates(RunState.of(result.reports[bench.warmup : last]).whole, window),
        "device_busy": filled(passes.spans("inference", "learner"), window),
        "inference_busy": filled(passes.spans("inference"), window),
        "learner_busy": filled(passes.spans("learner"), window),
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if bench.device == "cuda" else None,
        "parameters": sum(tensor.numel() for tensor in result.weights.values()),
    }


def _rates(sums: Sums, window: Span) -> Run:
    seconds = window[1] - window[0]
    return {
        "seconds": seconds,
        "env_steps": sums.env_steps * CHUNK_ACTIONS,
        "env_steps_per_second": sums.env_steps * CHUNK_ACTIONS / seconds,
        "env_busy": sums.busy["env"],
        "batch_size": sums.batch_size.as_dict(),
        "staleness": sums.staleness.as_dict(),
    }


def _forget(bench: Bench) -> None:
    """Free the memory of the previous run, so that the next run's peak does not count it."""
    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def repetitions(bench: Bench) -> Iterator[tuple[str, Run]]:
    """Yield every mode and its run, `repetitions` times in turn, so that drifts of the machine affect all
    modes.
    """
    for _ in range(bench.repetitions):
        for mode in bench.order:
            yield mode, run(bench, mode)


def rows(bench: Bench, runs: Sequence[tuple[str, Run]]) -> list[Row]:
    """Return a row for each mode with a run: medians, and the runs themselves."""
    by_mode = {mode: [one for name, one in runs if name == mode] for mode in bench.order}
    return [
        {"mode": mode, "envs": bench.envs, "device": bench.device, **_medians(own, by_mode[BASE_MODE])}
        for mode, own in by_mode.items()
        if own
    ]


def _medians(own: Sequence[Run], base: Sequence[Run]) -> Row:
    # Ratios within a repetition, so that a drift of the machine cancels.
    ratios = [
        one["env_steps_per_second"] / other["env_steps_per_second"]
        for one, other in zip(own, base, strict=False)
    ]
    shares = ("device_busy", "inference_busy", "learner_busy", "env_busy")
    return {
        "repetitions": len(own),
        **{name: _median(own, name) for name in ("env_steps_per_second", "seconds", *shares)},
        "ratio": statistics.median(ratios),
        "peak_memory_bytes": _median(own, "peak_memory_bytes"),
        "batch_size": _spread(own, "batch_size"),
        "staleness": _spread(own, "staleness"),
        "parameters": own[0]["parameters"],
        "runs": list(own),
    }


def _median(runs: Sequence[Run], name: str) -> float | None:
    seen = [one[name] for one in runs if one[name] is not None]
    return statistics.median(seen) if seen else None


def _spread(runs: Sequence[Run], name: str) -> dict[str, float]:
    return {
        "min": min(one[name]["min"] for one in runs),
        "mean": statistics.median(one[name]["mean"] for one in runs),
        "max": max(one[name]["max"] for one in runs),
    }
