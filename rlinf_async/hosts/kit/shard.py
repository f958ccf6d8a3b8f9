"""Environments of one shard as the env loop sees them; a host says how they reset, step and are built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

import torch

from rlinf_async.core.tensors import Episodes
from rlinf_async.hosts.contract import Contract
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.loops.finite import check_shown, not_finite
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

Output = TypeVar("Output")
Shown = tuple[Output, Mapping[str, Any]]
"""An output of environments, and the numbers in it that have to be finite, by name."""


class Shard(Generic[Output]):
    """The common part of a shard for training and one for evaluation; fills `loops.ports.ShardEnv`.

    What a host gives is called in the thread of the environments.
    """

    others_stand: bool = False
    """True if environments that are over are not stepped. A host may see to that, by `stand`."""

    def __init__(
        self,
        simulators: SimulatorThread,
        *,
        size: int,
        horizon: int,
        fields: Collection[str] = (),
        skips_ended: bool = False,
    ) -> None:
        """Be a shard of `size` environments, with `horizon` decisions in a rollout.

        Args:
            fields: those of observations that policies are shown; none: all.
            skips_ended: whether nothing is decided for environments whose episodes have ended.
        """
        self._simulators = simulators
        self._skips_ended = skips_ended
        self._playing: Playing | None = None
        self._actions: torch.Tensor | None = None
        self.size, self.horizon = size, horizon
        self.contract = Contract(simulators.shard, size, fields=fields)
        self._last: Output | None = None

    def begin(self) -> Shown[Output]:
        """Reset, or carry on where the last rollout ended. A host does."""
        raise NotImplementedError

    def act(self, actions: Any) -> Shown[Output]:
        """Return the outputs of a decision; `actions` are its own. A host does.

        Environments that are over get the last actions of their episodes again.
        """
        raise NotImplementedError

    def shown(self, output: Output) -> dict[str, Any]:
        """Return the payload of a request of all environments. A host does."""
        raise NotImplementedError

    def stand(self, playing: Playing | None) -> None:
        """The next `act` is one of those that are `playing` (None: of all). A host may leave the others
        alone.
        """

    def play_on(self, over: torch.Tensor) -> Playing | None:
        """Note after an output which environments [B] bool are over: whatever follows counts nothing.

        Returns:
            Those that play on; None for all.
        """
        self._playing = None
        if self._skips_ended:
            self._playing = Playing.after(over, others_stand=self.others_stand)
        return self._playing

    def playing_at(self, output: Output) -> Playing | None:
        """Return the environments that play on after an output: by default after the last one."""
        return self._playing

    def end(self) -> None:
        """Prepare the next initial states. A host does."""
        raise NotImplementedError

    def rebuild(self) -> None:
        """Close the environments, and have others in their place. A host does."""
        raise NotImplementedError

    def forget(self) -> None:
        """Other environments are there, of which nothing is known."""
        self._last = None

    def waiting(self, output: Output) -> int:
        playing = self.playing_at(output)
        return self.size if playing is None else len(playing.numbers)

    def observation(self, output: Output) -> dict[str, Any]:
        shown, playing = self.shown(output), self.playing_at(output)
        return shown if playing is None else playing.of(shown)

    async def start(self) -> Output:
        self._playing = None
        return self._finite(*await self._simulators.reset(lambda: self._with_faults(self._begin())))

    async def step(self, answer: Mapping[str, Any]) -> Output:
        actions = self._of_all(answer["actions"])
        return self._finite(*await self._simulators.step(lambda: self._with_faults(self._act(actions))))

    def _begin(self) -> Shown[Output]:
        self.stand(None)
        return self.begin()

    def _act(self, actions: torch.Tensor) -> Shown[Output]:
        self.stand(self._playing)
        return self.act(actions)

    def _of_all(self, actions: torch.Tensor) -> torch.Tensor:
        """The actions of all environments, in memory of their own."""
        if self._playing is not None:
            assert self._actions is not None, "all environments play at first"
            whole = self._playing.among({"actions": self._actions}, {"actions": actions})
            actions = whole["actions"]  # type: ignore[assignment]
        self._actions = actions if self._skips_ended else None
        # Copied: what the policy has answered may be shared, and environments may write into what they get.
        return actions.clone()

    async def finish(self) -> None:
        # Before `end`: the rollout is complete, whatever preparing the next one does.
        self.contract.prove()
        await self._simulators.finish(self.end)

    async def restart(self) -> None:
        await self._build(self.rebuild)

    async def _build(self, build: Callable[[], object]) -> None:
        # Other environments may show other fields, if those before never completed a rollout.
        self.contract.forget()
        await self._simulators.build(build)
        self.forget()

    def _with_faults(self, shown: Shown[Output]) -> tuple[Output, list[str]]:
        """The output, and sentences about numbers that are not finite."""
        return shown[0], not_finite(self._simulators.advanced, shown[1])

    def _finite(self, output: Output, bad: list[str]) -> Output:
        """The output, unless something `bad` has been shown."""
        check_shown(self._simulators.advanced, bad)
        return output


class TrainShard(Shard[Output]):
    """Training environments; fills `ray_runtime.processes.shard_worker.TrainShardEnv`."""

    def __init__(self, simulators: SimulatorThread, *, busy: BusyMeter, number: int, **options: Any) -> None:
        """`number`: of the stage in its env worker, under which `busy` counts it; `options` as of a shard."""
        super().__init__(simulators, **options)
        self._busy, self._number = busy, number
        self._taken_on: tuple[int, int] | None = None
        self._stands_at: tuple[int, int] | None = None

    def rebuild_at(self, step: int) -> None:
        """As `rebuild`, at the checkpoint after `step`. A host does."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Wait for what environments do beside their thread after a reset or a step. A host may."""

    async def start(self) -> Output:
        with self._busy.busy(self._number):
            output = await super().start()
            await self.settle()
            return output

    async def step(self, answer: Mapping[str, Any]) -> Output:
        with self._busy.busy(self._number):
            output = await super().step(answer)
            await self.settle()
            return output

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = self._stands_at = (place, rollout)

    def stand_at(self, place: int, rollout: int) -> None:
        self._stands_at = (place, rollout)

    async def renew(self, step: int) -> None:
        await self._build(lambda: self.rebuild_at(step))


class EvalShard(Shard[Output]):
    """Evaluation environments; every episode counts once, when it ends."""

    def __init__(self, simulators: SimulatorThread, **options: Any) -> None:
        super().__init__(simulators, **options)
        self.episodes: Episodes = []
        self._complete = 0

    async def finish(self) -> None:
        await super().finish()
        self._complete = len(self.episodes)

    def forget(self) -> None:
        """The episodes of the rollout that has failed are forgotten: it is run again."""
        super().forget()
        del self.episodes[self._complete :]
