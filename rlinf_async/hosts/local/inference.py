"""An inference rank: a copy of the policy that answers batches of requests."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch

from rlinf_async.core.tensors import Tree, map_tensors, slice_samples
from rlinf_async.hosts.local.device import DeviceQueue, Watch, unwatched
from rlinf_async.hosts.local.policy import ActorCritic
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.hosts.observations import each_alike, storages
from rlinf_async.loops.policy_thread import PolicyThread
from rlinf_async.loops.request_broker import Pending
from rlinf_async.loops.simulator_thread import CLOSE_TIMEOUT_S
from rlinf_async.loops.watched_thread import DaemonThread
from rlinf_async.observe.meters import BusyMeter

State = dict[str, torch.Tensor]
ANSWER_FIELDS = ("actions", "logprobs", "values", "inputs")
"""Results of a policy for a batch, in its order; some policies leave out the last."""


@dataclass(frozen=True)
class Answer:
    """The answer of the policy to the environments of one request, [B, ...] each."""

    actions: torch.Tensor
    logprobs: torch.Tensor
    values: torch.Tensor
    version: int
    inputs: Tree | None = None
    """Inputs for later scores, in the place of states, if the policy gives them."""


class InferenceRank:
    """Fills `loops.ports.Policy` and `LoadablePolicy`.

    Forward passes and changes of weights run on the rank's one thread, one after the other: an answer
    is made by the weights of exactly the version that it carries.
    """

    def __init__(
        self,
        rank: int,
        *,
        model: ActorCritic,
        busy: BusyMeter,
        watch: Watch = unwatched,
        deadline_s: float = math.inf,
        process: WholeProcess | None = None,
    ) -> None:
        self._rank = rank
        self._busy = busy
        self._model = copy.deepcopy(model).eval()
        # Environments stand still while they wait for an answer; a learner has more to do anyway.
        self._queue = DeviceQueue(self._model, "inference", urgent=True, watch=watch)
        self._version = 0
        self._thread = DaemonThread(f"inference-{rank}")
        self._thread.submit((process or WholeProcess()).pin_threads)
        self._policy = PolicyThread(f"inference rank {rank}", self._thread, deadline_s=deadline_s)

    async def act(self, batch: Sequence[Pending]) -> list[Any]:
        """One `Answer` per request, in order, or, where scores are asked for, a mapping."""
        payloads = [pending.request.payload for pending in batch]
        work = self._scores if batch[0].request.mode == "score" else self._forward
        with self._busy.busy(self._rank):
            answers: list[Any] = await self._policy.call(partial(work, payloads))
            return answers

    async def load(self, version: int, data: State) -> None:
        """Act with the weights `data` from the next forward pass on."""
        await self._policy.call(partial(self._load, data, version))

    def close(self) -> None:
        """Wait for the forward pass that may still be running, if it ever ends."""
        self._thread.leave(CLOSE_TIMEOUT_S)

    def _load(self, state: State, version: int) -> None:
        with self._queue.block():
            self._model.load_state_dict(state)
        self._version = version

    @torch.no_grad()
    def _forward(self, payloads: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """One answer per request; only what has the same fields is seen by the policy as one batch."""
        with self._queue.block():
            return each_alike(
                [payload["states"] for payload in payloads],
                lambda numbers: self._answers([payloads[number] for number in numbers]),
            )

    def _answers(self, payloads: Sequence[Mapping[str, Any]]) -> list[Answer]:
        states = self._model.merged([payload["states"] for payload in payloads])
        if isinstance(states, torch.Tensor):  # fields of observations are for the policy to move
            states = states.to(self._queue.device)
        noise = torch.cat([payload["noise"] for payload in payloads]).to(self._queue.device)
        with self._queue.watched():
            acted = self._model.act(states, noise)
        shown = storages(
            states
        )  # which is ours; the rest is copied, where the policy may write its next answer
        own = map_tensors(
            lambda tensor: tensor.to("cpu", copy=tensor.untyped_storage().data_ptr() not in shown),
            dict(zip(ANSWER_FIELDS, acted, strict=False)),
        )
        stops = [0, *accumulate(len(payload["noise"]) for payload in payloads)]
        parts: list[Any] = [slice_samples(own, *each) for each in pairwise(stops)]
        return [Answer(**part, version=self._version) for part in parts]

    @torch.no_grad()
    def _scores(self, payloads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Log-probabilities and values of each request's samples, [B, ...]."""
        with self._queue.block():
            answers = []
            for payload in payloads:
                samples: Any = self._queue.put(payload["samples"])
                with self._queue.watched():
                    logprobs, values = self._model.evaluate(samples["states"], samples["actions"])
                scores = {"logprobs": logprobs.cpu(), "values": values.cpu()}
                answers.append({"version": self._version, "scores": scores})
            return answers
