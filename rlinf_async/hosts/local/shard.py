"""One environment shard of a run in this process, and the recorder of its rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from rlinf_async.core.tensors import Episodes, Tree
from rlinf_async.core.types import Ticket
from rlinf_async.hosts.kit.recorder import SampleRecorder, one_row
from rlinf_async.hosts.kit.shard import Shown
from rlinf_async.hosts.local.envs import EnvFactory, StateEnvs
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.whole_process import WholeProcess, call_in
from rlinf_async.hosts.tasks import TAKE_ON_METHOD
from rlinf_async.hosts.workers.shard import ShardOutput, Stage, TrainShard
from rlinf_async.loops.foreign import DaemonThread, let_go
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.simulator_thread import SimulatorThread, nothing_to_abort
from rlinf_async.observe.meters import BusyMeter

T = TypeVar("T")

EPISODES_FIELD = "episodes"
"""The field of a rollout with the statistics that environments have given, [1, B, ...]; not all give some."""
ONE_EPISODE = {"auto_reset": False, "ignore_terminations": False}
"""A rollout begins with a reset, and what has ended stands still."""


class Noise:
    """Standard normal numbers from a generator per environment.

    A request carries its noise: what is sampled depends neither on who shares the forward pass nor on
    how the environments are split into shards.
    """

    def __init__(self, *, first: int, size: int, width: int, seed: int) -> None:
        self._width = width
        keys = [np.random.SeedSequence(seed, spawn_key=(first + index,)) for index in range(size)]
        self._generators = [np.random.default_rng(key) for key in keys]

    def skip(self, times: int) -> None:
        """Leave out what as many calls of `draw` would give."""
        for generator in self._generators:
            generator.standard_normal((times, self._width), dtype=np.float32)

    def draw(self) -> torch.Tensor:
        """The next numbers, [envs, width]."""
        rows = [generator.standard_normal(self._width, dtype=np.float32) for generator in self._generators]
        return torch.from_numpy(np.stack(rows))


class Shard(TrainShard):
    """A shard of env workers without a worker: its environments share a process with the policy, and it draws
    the chance in the policy's actions."""

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
        stage = Stage(
            env=None,
            section=ONE_EPISODE,
            size=settings.plan.envs_per_shard,
            horizon=settings.horizon,
            simulators=simulators,
            rebuild=self._build_again,
        )
        super().__init__(stage, busy=busy, number=shard, skips_ended=settings.run.skips_ended)
        self._first = shard * self.size
        with ExitStack() as unless_built:
            # Environments that cannot be built would leave their thread behind.
            unless_built.callback(self._leave)
            simulators.build_first(self._build_first)
            unless_built.pop_all()
        self._resets = 0
        width = self.sizes["action_dim"]
        self._noise = Noise(first=self._first, size=self.size, width=width, seed=settings.seed)
        self._draws = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a policy for these environments. Observations have fields, whose shapes are for the policy
        to know: the noise of one number seeds its chance."""
        env = self._stage.env
        state, action = (env.state_dim, env.action_dim) if isinstance(env, StateEnvs) else (0, 1)
        return {"state_dim": state, "action_dim": action}

    @property
    def env(self) -> Any:
        """The environments, which others take the place of when they are rebuilt."""
        return self._stage.env

    @property
    def takes_tasks(self) -> bool:
        """True if the environments can take on the tasks of others."""
        return callable(getattr(self._stage.env, TAKE_ON_METHOD, None))

    def shown(self, output: ShardOutput) -> dict[str, Any]:
        # Of each output a request is made once, in order: the environments draw the same in every run.
        self._draws += 1
        return {"obs": {"seen": output.observation, "noise": self._noise.draw()}}

    async def finish(self) -> None:
        await super().finish()
        # A rollout that has ended early leaves the next one the same numbers as any other: one for each
        # decision, and one for the value at the horizon.
        self._noise.skip(self.horizon + 1 - self._draws)
        self._draws = 0

    def forget(self) -> None:
        super().forget()
        self._draws = 0

    def begin(self) -> Shown[ShardOutput]:
        self._resets += 1
        return self._in_process(super().begin)

    def act(self, actions: torch.Tensor) -> Shown[ShardOutput]:
        return self._in_process(partial(super().act, actions))

    def end(self) -> None:
        self._in_process(super().end)

    def close(self) -> None:
        """Free the environments, once the step that may still be running has ended, if it ever does.

        Raises:
            ShardFailure: they have failed while they were closed, or have not come to an end.
        """
        try:
            # In a thread that is stuck the call would wait behind the one that does not return.
            if not self._simulators.stuck:
                self._simulators.close(self._close)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._thread.shutdown(wait=not self._simulators.stuck)

    def _in_process(self, function: Callable[[], T]) -> T:
        """Return the result of `function` of the environments; called in their thread."""
        return call_in(self._process, lambda: self.contract.owner, function)

    def _build_first(self) -> None:
        try:
            self._in_process(self._make)
        except BaseException:
            let_go(self._close)
            raise

    def _build_again(self, _: int | None) -> Any:
        """Rebuild the environments; where they can, they go on after the episodes that have begun."""
        let_go(self._close)
        env = self._in_process(self._make)
        if isinstance(env, StateEnvs):
            self._in_process(partial(env.skip, self._resets))
        return env

    def _make(self) -> Any:
        self._stage.env = self._factory(self._first, self.size)
        self.contract.of(self._stage.env)
        return self._stage.env

    def _close(self) -> None:
        close = getattr(self._stage.env, "close", None)
        if callable(close):
            self._in_process(close)

    def _abort(self, reason: str) -> bool:
        abort = getattr(self._stage.env, "abort", nothing_to_abort)
        return bool(abort(reason))


class RolloutRecorder(SampleRecorder[ShardOutput]):
    """Records also which of the ended episodes were cut off, and counts the steps of a decision."""

    def __init__(self, ticket: Ticket, *, settings: RunSettings) -> None:
        self._told: Episodes = []
        super().__init__(ticket, settings=settings, every_end=False, episodes=self._told)
        self._truncated: list[torch.Tensor] = []
        self._steps = 1

    def observation_of(self, output: ShardOutput) -> dict[str, Any]:
        return output.observation

    def episodes_of(self, output: ShardOutput) -> dict[str, torch.Tensor]:
        return output.episodes

    def steps_per_decision(self) -> int:
        return self._steps

    def see(self, output: ShardOutput, answer: Mapping[str, Any]) -> None:
        super().see(output, answer)
        self._truncated.append(output.truncated)

    def decide(self, inputs: Tree, answer: Mapping[str, Any]) -> None:
        super().decide(inputs, answer)
        self._steps = answer["actions"].shape[1]

    def rollout(self) -> Tree:
        fields = super().rollout() | {"truncated": torch.stack(self._truncated)}
        for episodes in self._told:
            fields[EPISODES_FIELD] = one_row(dict(episodes))
        return fields
