"""The environments of one shard, as the env loop uses them; a host implements reset, step and build."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from rlinf_async.core.tensors import Episodes
from rlinf_async.hosts.contract import Contract, Rows
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.loops.finite import check_shown, not_finite
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

if TYPE_CHECKING:
    from rlinf_async.hosts.kit.ends import Ends

Output = TypeVar("Output")
Shown = tuple[Output, Mapping[str, Any]]
"""An output of environments, and the values in it that must be finite, by name."""


class Shard(Generic[Output]):
    """The common part of training and evaluation shards; implements `loops.ports.ShardEnv`.

    Methods that hosts implement are called in the environments' thread.
    """

    others_stand: bool = False
    """True if environments are not stepped after the end of their episodes; the host's `stand` sets it."""

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
            fields: the fields of observations that policies receive; empty for all.
            skips_ended: True if no actions are inferred for environments after the end of their episodes.
        """
        self._simulators = simulators
        self._skips_ended = skips_ended
        self._playing: Playing | None = None
        self._actions: torch.Tensor | None = None
        self.size, self.horizon = size, horizon
        self.contract = Contract(simulators.shard, size, fields=fields)
        self._last: Output | None = None

    def begin(self) -> Shown[Output]:
        """Reset, or continue where the last rollout ended. Hosts implement this."""
        raise NotImplementedError

    def act(self, actions: Any) -> Shown[Output]:
        """Return the output of a decision; the method may write into `actions`. Hosts implement this.

        After the end of its episode an environment gets its last actions again.
        """
        raise NotImplementedError

    def shown(self, output: Output) -> dict[str, Any]:
        """Return the payload of a request with all environments. Hosts implement this."""
        raise NotImplementedError

    def stand(self, playing: Playing | None) -> None:
        """Called before an `act` of the `playing` environments (None: all); hosts may not step the others."""

    def play_on(self, over: torch.Tensor) -> Playing | None:
        """Note the environments that are `over`, [B] bool, after an output: their later steps do not count.

        Returns:
            The environments that play on; None for all.
        """
        self._playing = None
        if self._skips_ended:
            self._playing = Playing.after(over, others_stand=self.others_stand)
        return self._playing

    def playing_at(self, output: Output) -> Playing | None:
        """Return the environments that play on after `output`, which must be the last; hosts may override
        this.
        """
        return self._playing

    def end(self) -> None:
        """Prepare the next initial states. Hosts implement this."""
        raise NotImplementedError

    def rebuild(self) -> None:
        """Close the environments and build new ones. Hosts implement this."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the last output, as the environments were rebuilt."""
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
        """Return the actions for all environments, copied."""
        if self._playing is not None:
            assert self._actions is not None, "all environments play at first"
            whole = self._playing.among({"actions": self._actions}, {"actions": actions})
            actions = whole["actions"]  # type: ignore[assignment]
        self._actions = actions if self._skips_ended else None
        # Copied: the answer may share memory, and environments may write into their actions.
        return actions.clone()

    async def finish(self) -> None:
        # Before `end`, which may fail: the rollout is complete.
        self.contract.prove()
        await self._simulators.finish(self.end)

    async def restart(self) -> None:
        await self._build(self.rebuild)

    async def _build(self, build: Callable[[], object]) -> None:
        # Rebuilt environments may have other fields, if no rollout was ever completed.
        self.contract.forget()
        await self._simulators.build(build)
        self.forget()

    def _with_faults(self, shown: Shown[Output]) -> tuple[Output, list[str]]:
        """Return the output, and a sentence about each value that is not finite."""
        return shown[0], not_finite(self._simulators.advanced, shown[1])

    def _finite(self, output: Output, bad: list[str]) -> Output:
        """Return the output, unless the sentences `bad` about it end the rollout."""
        check_shown(self._simulators.advanced, bad)
        return output


class TrainShard(Shard[Output]):
    """Training environments; implements `loops.ports.TrainShardEnv`."""

    def __init__(
        self,
        simulators: SimulatorThread,
        *,
        busy: BusyMeter,
        number: int,
        ends: Ends | None = None,
        **options: Any,
    ) -> None:
        """`number`: the stage's number in its env worker, for `busy`; `options`: those of `Shard`."""
        super().__init__(simulators, **options)
        self._busy, self._number, self._ends = busy, number, ends
        self._taken_on: tuple[int, int] | None = None
        self._stands_at: tuple[int, int] | None = None

    def rebuild_at(self, step: int) -> None:
        """Rebuild the environments at the checkpoint after `step`. Hosts implement this."""
        raise NotImplementedError

    async def finish(self) -> None:
        if self._ends is not None:
            self._ends.look(self.contract)
        await super().finish()

    async def settle(self) -> None:
        """Wait for work outside the environments' thread, after a reset or a step. Hosts may override
        this.
        """

    async def start(self) -> Output:
        if self.contract.rows is not None:
            self.contract.rows.begin()
        with self._busy.busy(self._number):
            output = await super().start()
            await self.settle()
            return output

    async def step(self, answer: Mapping[str, Any]) -> Output:
        if self.contract.rows is not None:
            self.contract.rows.next()
        with self._busy.busy(self._number):
            output = await super().step(answer)
            await self.settle()
            return output

    def keep_in(self, rows: Rows) -> None:
        """Keep the observations of rollouts in memory that is not this shard's own."""
        self.contract.rows = rows

    def take_on(self, place: int, rollout: int) -> None:
        self._taken_on = self._stands_at = (place, rollout)

    def stand_at(self, place: int, rollout: int) -> None:
        self._stands_at = (place, rollout)

    async def renew(self, step: int) -> None:
        await self._build(lambda: self.rebuild_at(step))


class EvalShard(Shard[Output]):
    """Evaluation environments; each episode is counted once, when it ends."""

    def __init__(self, simulators: SimulatorThread, **options: Any) -> None:
        super().__init__(simulators, **options)
        self.episodes: Episodes = []
        self._complete = 0

    async def finish(self) -> None:
        await super().finish()
        self._complete = len(self.episodes)

    def forget(self) -> None:
        """Drop the episodes of a failed rollout, which will be repeated."""
        super().forget()
        del self.episodes[self._complete :]
