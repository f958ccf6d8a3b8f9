"""One environment shard, as the env loop sees it, and the recorder of its rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from rlinf_async.core.failures import ShardFailure
from rlinf_async.core.tensors import Tree
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.contract import Contract, Place, shown
from rlinf_async.hosts.kit.recorder import SampleRecorder
from rlinf_async.hosts.kit.shard import Shown, TrainShard
from rlinf_async.hosts.local.envs import EnvFactory, Environments, Outcome
from rlinf_async.hosts.local.policy import Observation
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.whole_process import WholeProcess, call_in
from rlinf_async.hosts.tasks import TAKE_ON_METHOD
from rlinf_async.loops.foreign import DaemonThread, let_go
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.simulator_thread import SimulatorThread, nothing_to_abort
from rlinf_async.observe.meters import BusyMeter

T = TypeVar("T")


@dataclass(frozen=True)
class ShardOutput:
    """The outputs of the environments after a decision (or a reset), [B, ...] each."""

    states: Observation
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


class Shard(TrainShard[ShardOutput]):
    """A shard whose environments are built and used in a thread of its own."""

    def __init__(
        self,
        shard: int,
        *,
        settings: LocalSettings,
        build: EnvFactory,
        busy: BusyMeter,
        process: WholeProcess | None = None,
    ) -> None:
        self._factory, self._process = build, process or WholeProcess()
        self._thread = DaemonThread(f"shard-{shard}")
        simulators = SimulatorThread(shard, self._thread, settings.asynchrony.advanced, abort=self._abort)
        sizes = {"size": settings.plan.envs_per_shard, "horizon": settings.horizon}
        super().__init__(simulators, busy=busy, number=shard, **sizes)
        self._first = shard * self.size
        with ExitStack() as unless_built:
            # Environments that cannot be built would leave their thread behind.
            unless_built.callback(self._leave)
            self._envs: Environments
            simulators.build_first(self._make_first)
            unless_built.pop_all()
        self._resets = 0
        self._noise = Noise(first=self._first, size=self.size, width=self.action_dim, seed=settings.seed)

    @property
    def state_dim(self) -> int:
        return self._envs.state_dim

    @property
    def action_dim(self) -> int:
        return self._envs.action_dim

    @property
    def takes_tasks(self) -> bool:
        """True if the environments can take on the tasks of others."""
        return callable(getattr(self._envs, TAKE_ON_METHOD, None))

    def observation(self, output: ShardOutput) -> dict[str, Any]:
        return {"obs": {"states": output.states, "noise": output.noise}}

    def begin(self) -> Shown[ShardOutput]:
        return self._in_process(self._begin)

    def act(self, actions: torch.Tensor) -> Shown[ShardOutput]:
        return self._in_process(lambda: self._shown(self._envs.step(actions.numpy()), "step"))

    async def finish(self) -> None:
        """Every reset draws new initial states by itself."""
        self.contract.prove()

    async def restart(self) -> None:
        """Rebuild the environments; where they can, they go on after the episodes that have begun."""
        # They have failed anyhow, and may fail once more while they are closed.
        with suppress(ShardFailure):
            await self._simulators.build(self._envs.close)
        await super().restart()

    def rebuild(self) -> None:
        self._in_process(self._make)
        if callable(getattr(self._envs, "skip", None)):
            self._in_process(lambda: self._envs.skip(self._resets))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Free the environments, once the step that may still be running has ended, if it ever does.

        Raises:
            ShardFailure: they have failed while they were closed, or have not come to an end.
        """
        try:
            # In a thread that is stuck the call would wait behind the one that does not return.
            if not self._simulators.stuck:
                self._simulators.close(partial(self._in_process, self._envs.close))
        finally:
            self._leave()

    def _leave(self) -> None:
        self._thread.shutdown(wait=not self._simulators.stuck)

    def _in_process(self, function: Callable[[], T]) -> T:
        """Return the result of `function` of the environments; called in their thread."""
        return call_in(self._process, lambda: self.contract.owner, function)

    def _make_first(self) -> None:
        try:
            self._in_process(self._make)
        except BaseException:
            if hasattr(self, "_envs"):
                let_go(self._envs.close)
            raise

    def _make(self) -> None:
        self._envs = self._factory(self._first, self.size)
        self.contract.of(getattr(self._envs, "declared", self._envs))

    def _abort(self, reason: str) -> bool:
        abort = getattr(self._envs, "abort", nothing_to_abort)
        return bool(abort(reason))

    def _begin(self) -> Shown[ShardOutput]:
        nothing = np.zeros(self.size, dtype=np.float32)
        self._resets += 1
        if self._taken_on is not None:
            place, rollout = self._taken_on
            self._envs.take_on(place * self.size, rollout)  # type: ignore[attr-defined]
        return self._shown(Outcome(self._envs.reset(), nothing, nothing.astype(bool)), "reset")

    def _shown(self, outcome: Outcome, place: Place) -> Shown[ShardOutput]:
        contract = self.contract.of(getattr(self._envs, "declared", self._envs))
        each, truncated = (self.size,), outcome.truncated
        output = ShardOutput(
            states=self._states(contract, outcome.states, place),
            rewards=contract.numbers("rewards", outcome.rewards, each).float(),
            ended=contract.flags("ends", outcome.ended, each),
            noise=self._noise.draw(),
            truncated=None if truncated is None else contract.flags("truncations", truncated, each),
        )
        return output, shown(output.states, output.rewards)

    def _states(self, contract: Contract, given: Any, place: Place) -> Observation:
        """An observation, or states as numbers with fractions; pictures stay bytes."""
        if isinstance(given, Mapping) or hasattr(self._envs, "declared"):
            return contract.observation(given, place)
        states: torch.Tensor = contract.observation({"states": given}, place)["states"]
        return states if states.dtype is torch.uint8 else states.float()


class RolloutRecorder(SampleRecorder[ShardOutput]):
    """Records, where environments tell, which of the episodes that have `ended` were cut off: `truncated`."""

    def __init__(self, ticket: Ticket, *, settings: RunSettings) -> None:
        super().__init__(ticket, settings=settings, every_end=False, episodes=[])
        self._cuts: list[torch.Tensor | None] = []
        self._steps = 1

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return {"states": output.states}

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return {}

    def steps_per_decision(self) -> int:
        return self._steps

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        super().see(output, answer)
        self._cuts.append(output.truncated)

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        super().decide(inputs, answer)
        if answer["actions"].dim() == 3:  # [B, C, A] where a decision has C steps
            self._steps = answer["actions"].shape[1]

    def rollout(self) -> Tree:
        rollout = super().rollout()
        if self._cuts[-1] is not None:
            # The output of a reset tells of no cuts: None stands for none of them.
            none = torch.zeros_like(self._cuts[-1])
            rollout["truncated"] = torch.stack([none if cut is None else cut for cut in self._cuts])
        return rollout
