"""An inference rank: a copy of the policy that answers batches of requests."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from rlinf_async.core.tensors import leaf, map_tensors
from rlinf_async.hosts.kit.answers import Answer, Answering
from rlinf_async.hosts.kit.examination import Buffers, FirstLook, whole_decision
from rlinf_async.hosts.local.policy import ActorCritic, DeviceQueue
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.hosts.observations import merge, storages
from rlinf_async.loops.foreign import DaemonThread, blaming_the_policy, contained
from rlinf_async.loops.inference import PolicyThread
from rlinf_async.loops.requests import Pending
from rlinf_async.loops.simulator_thread import CLOSE_TIMEOUT_S
from rlinf_async.observe.meters import BusyMeter

State = dict[str, torch.Tensor]
ANSWER_FIELDS = ("actions", "prev_logprobs", "prev_values", "forward_inputs")
"""Names of the results of `ActorCritic.act`, in its order; some policies omit the last."""


class InferenceRank(Answering):
    """One inference rank; implements `loops.ports.Policy` and `LoadablePolicy`.

    Forward passes and loads of weights run one after the other in the rank's single thread, so that an answer
    is made by exactly the version that it carries.
    """

    def __init__(
        self,
        rank: int,
        *,
        model: ActorCritic,
        busy: BusyMeter,
        deadline_s: float = math.inf,
        process: WholeProcess | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """`say` gets remarks on the policy if this rank is to examine it (`FirstLook`); None otherwise."""
        self._rank = rank
        self._busy = busy
        # A copy, as the learner changes its own model while this one acts.
        self._model = contained(
            lambda: copy.deepcopy(model).eval(), blaming_the_policy("a copy for inference")
        )
        # Urgent: environments stand still while they wait for an answer; the learner has other work.
        self._queue = DeviceQueue(self._model, urgent=True)
        self._buffers = Buffers(self._model)
        if say is not None:
            self.first_look = FirstLook(say)
        self._version_held = 0
        self._thread = DaemonThread(f"inference-{rank}")
        self._process = process or WholeProcess()
        self._thread.submit(self._process.pin_threads)
        self._policy = PolicyThread(f"inference rank {rank}", self._thread, deadline_s=deadline_s)

    async def act(self, batch: Sequence[Pending]) -> list[Any]:
        """Return one answer per request, in order; for requests of mode `score`, mappings with scores."""
        payloads = [pending.request.payload for pending in batch]
        work = self._scores if batch[0].request.mode == "score" else self._forward
        with self._busy.busy(self._rank):
            answers: list[Any] = await self._policy.call(
                partial(self._process.compute, partial(work, payloads))
            )
            return answers

    async def load(self, version: int, data: State) -> None:
        """Use the weights `data` from the next forward pass on."""
        await self._policy.call(partial(self._load, data, version))

    def close(self) -> None:
        """Wait, up to a deadline, for a forward pass that is still running."""
        self._thread.leave(CLOSE_TIMEOUT_S)

    def _load(self, state: State, version: int) -> None:
        with self._queue.block():
            self._buffers.check()
            self._model.load_state_dict(state)
            self._buffers.note()
        self._version_held = version

    @torch.no_grad()
    def _forward(self, payloads: list[dict[str, Any]]) -> list[Answer]:
        with self._queue.block():
            return self.answer(payloads, [len(payload["obs"]["noise"]) for payload in payloads], "train")

    def watched_module(self) -> torch.nn.Module:
        return self._model

    def by_chance(
        self, observations: list[Mapping[str, Any]], size: int, mode: str, chance: int
    ) -> Mapping[str, Any]:
        # All randomness is in the noise of a request: draw it again in copies of the observations.
        draw = torch.Generator().manual_seed(chance)
        seen: list[Mapping[str, Any]] = [
            {**each, "noise": torch.randn(each["noise"].shape, generator=draw)} for each in observations
        ]
        return whole_decision(*self.decide(seen, size, mode))

    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        states = self._model.states_of(merge([each["seen"] for each in observations]))
        noise = torch.cat([each["noise"] for each in observations]).to(self._queue.device)
        # A declared policy moves the fields of observations to its device itself.
        seen = states.to(self._queue.device) if isinstance(states, torch.Tensor) else states
        outputs = self._model.act(seen, noise)
        own_storages = storages(states)  # other tensors are copied: the policy may reuse their memory
        result = map_tensors(
            lambda tensor: tensor.to("cpu", copy=tensor.untyped_storage().data_ptr() not in own_storages),
            dict(zip(ANSWER_FIELDS, outputs, strict=False)),
        )
        actions = leaf(result, "actions")
        result.setdefault("forward_inputs", {"states": states, "actions": actions})
        # [B, steps, action_dim]: policies for states decide one step at a time.
        return actions.reshape(size, -1, actions.shape[-1]), result

    @torch.no_grad()
    def _scores(self, payloads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return log-probabilities and values of each request's samples, [B, ...]."""
        with self._queue.block():
            answers = []
            for payload in payloads:
                samples: Any = self._queue.put(payload["samples"])
                logprobs, values = self._model.score(samples["forward_inputs"])
                scores = {"logprobs": logprobs.cpu(), "values": values.cpu()}
                answers.append({"version": self._version_held, "scores": scores})
            return answers
