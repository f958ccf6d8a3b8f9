"""One environment shard, as the env loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from rlinf_async.core.failures import ShardFailure
from rlinf_async.hosts.contract import Contract, Place, shown
from rlinf_async.hosts.local.envs import EnvFactory, Environments, Outcome
from rlinf_async.hosts.local.inference import Answer
from rlinf_async.hosts.local.policy import Seen
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.whole_process import WholeProcess, kept
from rlinf_async.hosts.tasks import TAKE_ON_METHOD
from rlinf_async.loops.finite import check_shown, not_finite
from rlinf_async.loops.foreign import let_go
from rlinf_async.loops.simulator_thread import SimulatorThread, nothing_to_abort
from rlinf_async.loops.watched_thread import DaemonThread
from rlinf_async.observe.meters import BusyMeter

T = TypeVar("T")


@dataclass(frozen=True)
class ShardOutput:
    """The outputs of the environments after a decision (or a reset), [B, ...] each."""

    states: Seen
    rewards: torch.Tensor
    ended: torch.Tensor
    noise: torch.Tensor
    """The chance in the next action."""
    truncated: torch.Tensor | None = None
    """True for ended episodes that were cut off; None where the environments do not tell."""


class Noise:
    """Standard normal numbers from a generator per environment.

    A request carries its noise: what is sampled depends neither on who shares the forward pass nor on
    how the environments are split into shards.
    """

    def __init__(self, *, first: int, size: int, width: int, seed: int) -> None:
        self._width = width
        keys = [np.random.SeedSequence(seed, spawn_key=(first + index,)) for index in range(size)]
        self._generators = [np.random.default_rng(key) for key in keys]

    def draw(self) -> torch.Tensor:
        """The next numbers, [envs, width]."""
        rows = [generator.standard_normal(self._width, dtype=np.float32) for generator in self._generators]
        return torch.from_numpy(np.stack(rows))


class Shard:
    """Fills `loops.ports.ShardEnv`; the environments are built and used in the shard's own thread."""

    def __init__(
        self,
        shard: int,
        *,
        settings: LocalSettings,
        build: EnvFactory,
        busy: BusyMeter,
        process: WholeProcess | None = None,
    ) -> None:
        self.size = settings.plan.envs_per_shard
        self.horizon = settings.horizon
        self._shard, self._build, self._process = shard, build, process or WholeProcess()
        self._first = shard * self.size
        self._busy = busy
        self._thread = DaemonThread(f"shard-{shard}")
        self._advanced = settings.asynchrony.advanced
        self._simulators = SimulatorThread(shard, self._thread, self._advanced, abort=self._abort)
        self._contract = Contract(shard, self.size)
        with ExitStack() as unless_built:
            unless_built.callback(self._leave)
            self._envs: Environments
            self._simulators.build_first(self._make_first)
            unless_built.pop_all()
        self._resets = 0
        self._taken_on: tuple[int, int] | None = None
        self._noise = Noise(first=self._first, size=self.size, width=self.action_dim, seed=settings.seed)

    @property
    def state_dim(self) -> int:
        return self._envs.state_dim

    @property
    def action_dim(self) -> int:
        return self._envs.action_dim

    async def start(self) -> ShardOutput:
        with self._busy.busy(self._shard):
            return self._finite(*await self._simulators.reset(partial(self._kept, self._start)))

    async def step(self, answer: Answer) -> ShardOutput:
        with self._busy.busy(self._shard):
            step = partial(self._kept, partial(self._step, answer))
            return self._finite(*await self._simulators.step(step))

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        return {"states": output.states, "noise": output.noise}

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = (place * self.size, rollout)

    @property
    def takes_tasks(self) -> bool:
        """True if the environments can take on the tasks of others."""
        return callable(getattr(self._envs, TAKE_ON_METHOD, None))

    async def finish(self) -> None:
        """Every reset draws new initial states by itself."""
        self._contract.prove()

    async def restart(self) -> None:
        """Rebuild the environments; where they can, they go on after the episodes that have begun."""
        with suppress(ShardFailure):
            await self._simulators.build(self._envs.close)
        await self._simulators.build(partial(self._kept, self._rebuild))

    def close(self) -> None:
        """Free the environments, once the step that may still be running has ended, if it ever does.

        Raises:
            ShardFailure: they have failed while they were closed, or have not come to an end.
        """
        try:
            if not self._simulators.stuck:
                self._simulators.close(partial(self._kept, self._envs.close))
        finally:
            self._leave()

    def _leave(self) -> None:
        self._thread.shutdown(wait=not self._simulators.stuck)

    def _kept(self, function: Callable[[], T]) -> T:
        """Return the result of `function` of the environments; called in their thread."""
        return kept(self._process, lambda: self._contract.who, function)

    def _make_first(self) -> None:
        try:
            self._kept(self._make)
        except BaseException:
            if hasattr(self, "_envs"):
                let_go(self._envs.close)
            raise

    def _make(self) -> None:
        self._envs = self._build(self._first, self.size)
        self._contract.of(getattr(self._envs, "declared", self._envs))

    def _rebuild(self) -> None:
        self._contract.forget()
        self._make()
        if callable(getattr(self._envs, "skip", None)):
            self._envs.skip(self._resets)  # type: ignore[attr-defined]

    def _abort(self, reason: str) -> bool:
        abort = getattr(self._envs, "abort", nothing_to_abort)
        return bool(abort(reason))

    def _start(self) -> tuple[ShardOutput, list[str]]:
        nothing = np.zeros(self.size, dtype=np.float32)
        self._resets += 1
        if self._taken_on is not None:
            self._envs.take_on(*self._taken_on)  # type: ignore[attr-defined]
        return self._output(Outcome(self._envs.reset(), nothing, nothing.astype(bool)), "reset")

    def _step(self, answer: Answer) -> tuple[ShardOutput, list[str]]:
        # Copied: what the policy has answered is recorded, and environments may write into what they get.
        return self._output(self._envs.step(answer.actions.clone().numpy()), "step")

    def _output(self, outcome: Outcome, place: Place) -> tuple[ShardOutput, list[str]]:
        """Return the checked outputs, and the sentences about numbers that are not finite."""
        contract = self._contract.of(getattr(self._envs, "declared", self._envs))
        each, truncated = (self.size,), outcome.truncated
        output = ShardOutput(
            states=self._states(contract, outcome.states, place),
            rewards=contract.numbers("rewards", outcome.rewards, each).float(),
            ended=contract.flags("ends", outcome.ended, each),
            noise=self._noise.draw(),
            truncated=None if truncated is None else contract.flags("truncations", truncated, each),
        )
        return output, not_finite(self._advanced, shown(output.states, output.rewards))

    def _states(self, contract: Contract, given: Any, place: Place) -> Seen:
        """An observation, or states as numbers with fractions; pictures stay bytes."""
        if isinstance(given, Mapping) or hasattr(self._envs, "declared"):
            return contract.observation(given, place)
        states: torch.Tensor = contract.observation({"states": given}, place)["states"]
        return states if states.dtype is torch.uint8 else states.float()

    def _finite(self, output: ShardOutput, bad: list[str]) -> ShardOutput:
        check_shown(self._advanced, bad)
        return output
