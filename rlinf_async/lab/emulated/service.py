"""Environments that only take time, to measure waits without a simulator."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlinf_async.lab.lengths import EpisodeLengths
from rlinf_async.observe.files import opened

SAMPLE_NUMBER_BASE = 10_000
"""Base of the number of a sample, which holds environment, rollout and decision; larger than the numbers of
rollouts and of decisions."""
TASK_COUNT = 10
"""Number of tasks; environments are dealt out to them in turn."""


@dataclass(frozen=True, kw_only=True)
class EnvService:
    """The service times of one environment, in seconds. A decision is a chunk of simulator steps.

    Decisions of an environment are log-normal around `decision_s` times the factor of its task, which is
    spread evenly from `fastest` to `slowest`. With `spike_share`, every one of the `steps` of a decision
    takes `spike_factor` times as long with that probability. A reset takes `reset_s` on average, evenly
    spread from 4/7 to 10/7 of it. With `episode`, episodes end after that many decisions on average and are
    reset on the spot; without, they last for a whole rollout. With `success`, that share of the episodes of
    the first rollout, and `success_gain` more of each later one, ends after `shortest` to `longest`
    decisions, and no episode follows within the rollout. A simulator that steps all its environments at once
    takes `vectorised_s` for a decision, whatever their number, and resets them in `reset_s`.
    """

    decision_s: float = 0.0
    cv: float = 0.0
    steps: int = 10
    spike_share: float = 0.0
    spike_factor: float = 1.0
    fastest: float = 1.0
    slowest: float = 1.0
    reset_s: float = 0.0
    episode: float = 0.0
    shortest: float = 1.0
    longest: float = 1.0
    success: float = 0.0
    success_gain: float = 0.0
    vectorised_s: float = 0.0
    device_s: float = 0.0

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Return the lengths of episodes; None if they do not end within a rollout."""
        if not self.success:
            return None
        return EpisodeLengths(
            shortest=self.shortest, longest=self.longest, success=self.success, gain=self.success_gain
        )

    def factor(self, env: int) -> float:
        """Return the time of environment number `env`'s task, as a multiple of the mean."""
        return self.fastest + (self.slowest - self.fastest) * (env % TASK_COUNT) / (TASK_COUNT - 1)


def slower(service: EnvService, envs: range, first: int) -> list[float]:
    """Return the slow-down factor of each of `envs` with the tasks of the environments from `first` on."""
    factors = [service.factor(first + index) for index in range(len(envs))]
    return [factor / service.factor(env) for factor, env in zip(factors, envs, strict=True)]


@dataclass(frozen=True, slots=True)
class Decision:
    """The seconds of an environment for one decision, and for a reset if an episode ends there."""

    seconds: float
    reset_s: float

    @property
    def ends(self) -> bool:
        return self.reset_s > 0.0


def decisions(service: EnvService, env: int, *, seed: int) -> Iterator[Decision]:
    """Yield the decisions of environment number `env` without end; equal in every mode and every shard."""
    rng = np.random.default_rng((seed, env))
    sigma = math.sqrt(math.log1p(service.cv**2))
    mean = service.decision_s * service.factor(env)
    while True:
        seconds = mean * float(rng.lognormal(-sigma * sigma / 2, sigma))
        if service.spike_share:
            spikes = int(rng.binomial(service.steps, service.spike_share))
            seconds *= 1.0 + spikes * (service.spike_factor - 1.0) / service.steps
        ends = service.episode > 0.0 and float(rng.random()) < 1.0 / service.episode
        reset = service.reset_s * float(rng.uniform(4 / 7, 10 / 7))
        yield Decision(seconds, reset if ends else 0.0)


def resets(service: EnvService, env: int, *, seed: int) -> Iterator[float]:
    """Yield the seconds of the resets between rollouts of environment number `env`, without end."""
    rng = np.random.default_rng((seed, env, 1))
    while True:
        yield service.reset_s * float(rng.uniform(4 / 7, 10 / 7))


@contextmanager
def holding(device: str | None) -> Iterator[None]:
    """Hold a device alone, among all threads and processes of this machine that hold the same file.

    `device` is the file's path; None is a device that no other process uses.
    """
    if device is None:
        yield
        return
    with opened(Path(device), os.O_WRONLY | os.O_CREAT) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class EmulatedBatch:
    """`size` environments that step together: a call sleeps for the time of the slowest.

    They emulate simulators in separate processes with a core each, unless they are vectorised. They take
    turns on the device, with each other and with other holders of the file `device`.
    """

    def __init__(
        self, service: EnvService, size: int, *, first: int, seed: int, device: str | None = None
    ) -> None:
        self.service = service
        self.first = first
        """The number of the first environment of the current tasks: the own first one, or another's."""
        self._envs = envs = range(first, first + size)
        self._slower = [1.0] * size
        self._device = device
        self._decisions = [decisions(service, env, seed=seed) for env in envs]
        self._resets = [resets(service, env, seed=seed) for env in envs]

    def take_on(self, first: int) -> None:
        """Take on the tasks of the environments from number `first` on; random draws stay the own ones."""
        self.first, self._slower = first, slower(self.service, self._envs, first)

    def reset(self) -> list[float]:
        """Start a rollout. Returns the seconds that each environment took."""
        if self.service.vectorised_s:
            return _sleep([self.service.reset_s] * len(self._resets))
        return _sleep([next(stream) for stream in self._resets])

    def step(self) -> tuple[list[float], list[bool]]:
        """Take a decision. Returns the seconds that each environment took, and which episodes ended."""
        durations = [next(stream) for stream in self._decisions]
        if self.service.vectorised_s:
            return _sleep([self.service.vectorised_s] * len(durations)), [False] * len(durations)
        seconds = _sleep(
            [one.seconds * more + one.reset_s for one, more in zip(durations, self._slower, strict=True)]
        )
        if self.service.device_s:
            with holding(self._device):
                time.sleep(self.service.device_s * len(durations))
        return [one + self.service.device_s for one in seconds], [one.ends for one in durations]


def _sleep(seconds: Sequence[float]) -> list[float]:
    time.sleep(max(seconds))
    return list(seconds)
