"""One environment shard of a run in this process, and the recorder of its rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from rlinf_async.core.tensors import Episodes, Tree
from rlinf_async.core.types import Ticket
from rlinf_async.entry_points import TAKE_ON_METHOD
from rlinf_async.hosts.kit.recorder import SampleRecorder, one_row
from rlinf_async.hosts.kit.shard import Shown
from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.hosts.workers.shard import ShardOutput, Stage, TrainShard
from rlinf_async.loops.foreign import DaemonThread, let_go
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.simulator_thread import SimulatorThread, nothing_to_abort
from rlinf_async.observe.meters import BusyMeter

T = TypeVar("T")

EnvFactory = Callable[[int, int], Any]
"""Called with `first` and `size`, in the shard's thread: builds environments `first` to `first + size` of the
run, with the interface of `rlinf_async.envs`."""

EPISODES_FIELD = "episodes"
"""The field of a rollout with the environments' statistics of episodes, [1, B, ...]; absent without any."""
ONE_EPISODE = {"auto_reset": False, "ignore_terminations": False}
"""The local host's `env` settings: rollouts begin with a reset, and ended environments are not stepped."""


class Noise:
    """Standard normal numbers from one generator per environment.

    A request carries its noise, so that sampled actions depend neither on the other requests in the forward
    pass nor on the split of the environments into shards.
    """

    def __init__(self, *, first: int, size: int, width: int, seed: int) -> None:
        self._width = width
        keys = [np.random.SeedSequence(seed, spawn_key=(first + index,)) for index in range(size)]
        self._generators = [np.random.default_rng(key) for key in keys]

    def skip(self, times: int) -> None:
        """Skip the numbers of `times` calls of `draw`."""
        for generator in self._generators:
            generator.standard_normal((times, self._width), dtype=np.float32)

    def draw(self) -> torch.Tensor:
        """Return the next numbers, [envs, width]."""
        rows = [generator.standard_normal(self._width, dtype=np.float32) for generator in self._generators]
        return torch.from_numpy(np.stack(rows))


class Shard(TrainShard):
    """A shard outside of an env worker: its environments are in the policy's process, and it draws the noise
    of the policy's actions.
    """

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
        size, horizon = settings.plan.envs_per_shard, settings.horizon
        own: Any = {"simulators": simulators, "rebuild": self._build_again}
        stage = Stage(env=None, section=ONE_EPISODE, size=size, horizon=horizon, **own)
        super().__init__(stage, busy=busy, number=shard, skips_ended=settings.run.skips_ended)
        self._first = shard * size
        try:
            simulators.build_first(self._build_first)
        except BaseException:
            self._leave()  # the shard's thread must end
            raise
        self._resets = self._draws = 0
        width = self.sizes["action_dim"]
        self._noise = Noise(first=self._first, size=size, width=width, seed=settings.seed)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a policy for these environments.

        For environments other than `StateEnvs` the policy knows the sizes itself; a single noise number seeds
        its sampling.
        """
        env = self._stage.env
        state, action = (env.state_dim, env.action_dim) if isinstance(env, StateEnvs) else (0, 1)
        return {"state_dim": state, "action_dim": action}

    @property
    def env(self) -> Any:
        """The present environments, which a rebuild replaces."""
        return self._stage.env

    @property
    def takes_tasks(self) -> bool:
        """True if the environments can take on tasks of other environments."""
        return callable(getattr(self._stage.env, TAKE_ON_METHOD, None))

    def shown(self, output: ShardOutput) -> dict[str, Any]:
        # Called once for each output, in order, so that every run draws the same noise.
        self._draws += 1
        return {"obs": {"seen": output.observation, "noise": self._noise.draw()}}

    async def finish(self) -> None:
        await super().finish()
        # A rollout that ended early must use as many draws as any other: one for each decision, and one for
        # the value at the horizon.
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
        """Close the environments, after a step that is still running, unless it never ends.

        Raises:
            ShardFailure: closing failed or did not end.
        """
        try:
            # In a stuck thread this call would wait for ever behind the one that does not return.
            if not self._simulators.stuck:
                self._simulators.close(self._close)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._thread.shutdown(wait=not self._simulators.stuck)

    def _in_process(self, function: Callable[[], T]) -> T:
        """Call `function` of the environments, in their thread, and check the process's state after it."""
        return self._process.call(lambda: self.contract.owner, function)

    def _build_first(self) -> None:
        try:
            self._in_process(self._make)
        except BaseException:
            let_go(self._close)
            raise

    def _build_again(self, _: int | None) -> Any:
        """Rebuild the environments; `StateEnvs` skip the episodes that were begun before."""
        let_go(self._close)
        self._stage.env = None  # frees the failed environments before others are built
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
    """Also records which episodes were truncated, and counts the environment steps of a decision."""

    def __init__(self, ticket: Ticket, *, settings: RunSettings) -> None:
        self._statistics: Episodes = []
        super().__init__(ticket, settings=settings, every_end=False, episodes=self._statistics)
        self._truncated: list[torch.Tensor] = []
        self._steps = 1

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
        for episodes in self._statistics:
            fields[EPISODES_FIELD] = one_row(dict(episodes))
        return fields
