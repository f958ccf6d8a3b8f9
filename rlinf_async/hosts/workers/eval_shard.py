"""Environments of one shard of an evaluation; those of training are in `hosts.workers.shard`."""

from __future__ import annotations

from typing import Any

import torch

from rlinf_async.hosts.contract import finite_fields
from rlinf_async.hosts.kit import shard as kit
from rlinf_async.hosts.kit.playing import Playing, let_play
from rlinf_async.hosts.kit.shard import Shown
from rlinf_async.hosts.workers.shard import Observation, Stage, chosen, decide, reset


class EvalShard(kit.EvalShard[Observation]):
    """Evaluation environments of one stage."""

    def __init__(self, stage: Stage, *, skips_ended: bool = False) -> None:
        super().__init__(
            stage.simulators,
            size=stage.size,
            horizon=stage.horizon,
            skips_ended=skips_ended and not stage.auto_reset,
        )
        self._stage, self._auto_reset = stage, stage.auto_reset
        self._ended = torch.zeros(stage.size, dtype=torch.bool)

    def stand(self, playing: Playing | None) -> None:
        self.others_stand = self._skips_ended and let_play(self._stage.env, playing)

    def shown(self, output: Observation) -> dict[str, Any]:
        return {"obs": output, "final_obs": None}

    def begin(self) -> Shown[Observation]:
        if self._auto_reset and self._last is not None:
            return self._last, {}
        self._stage.env.is_start = True
        self._ended = torch.zeros(self.size, dtype=torch.bool)
        self._last = reset(self, self._stage)
        return self._last, finite_fields(self._last)

    def act(self, actions: torch.Tensor) -> Shown[Observation]:
        step = decide(self, self._stage, actions)
        # Without auto_reset an environment may report the end at every step; its episode counts once.
        new = step.ended if self._auto_reset else step.ended & ~self._ended
        self._ended = self._ended | step.ended
        if new.any():
            statistics = (step.info.get("final_info") or step.info).get("episode")
            self.episodes.append(chosen(statistics, new))
        self.play_on(self._ended)
        self._last = step.observation
        return step.observation, finite_fields(step.observation)

    def end(self) -> None:
        if not self._auto_reset:
            self._stage.env.update_reset_state_ids()

    def rebuild(self) -> None:
        self._stage.env = self._stage.rebuild(None)
