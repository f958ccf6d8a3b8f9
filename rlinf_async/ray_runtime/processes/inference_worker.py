"""The inference side of a run in one process: a policy that answers batches of requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import compress
from typing import Any

import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.loops.env import together
from rlinf_async.loops.inference import PolicyThread, load_next, refresh_weights, serve_policy
from rlinf_async.loops.request_broker import Pending
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.request_channel import RequestServer
from rlinf_async.ray_runtime.processes.run_process import RunProcess, hand_over_quickly, seed_version
from rlinf_async.ray_runtime.publication.weight_file import Tensors
from rlinf_async.ray_runtime.publication.weights import WeightClient, apply, types_of
from rlinf_async.wire.payloads import Reader, read_sealed


class InferenceWorker(RunProcess):
    """One inference rank; a host gives the policy and its answers.

    Weights change between forward passes, never inside one: both happen in the one thread of inference.
    """

    sampling_seed: int | None = None
    """The seed from which this rank samples afresh at every version, in a deterministic run; None in
    others."""

    def start_inference(
        self,
        *,
        rank: int,
        deadline_s: float = math.inf,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        """Begin as this rank; `initializer` is called first in the thread of inference.

        `deadline_s`: how long others wait for an answer at most.
        """
        hand_over_quickly()
        self._inference_rank = rank
        self._model_lock = asyncio.Lock()
        self._version_held = -1
        self._busy = BusyMeter()
        self._reader = Reader()
        self._inference_thread = ThreadPoolExecutor(
            1, thread_name_prefix="inference", initializer=initializer, initargs=initargs
        )
        self._policy_thread = PolicyThread(
            f"inference rank {rank}", self._inference_thread, deadline_s=deadline_s
        )

    def policy_module(self) -> torch.nn.Module:
        """The module that takes the learner's weights. A host gives it."""
        raise NotImplementedError

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[dict[str, Any]]:
        """One answer per request, with the `version` that made it. A host gives them.

        It is called in the thread of inference.

        Args:
            payloads: what the shards have asked with.
            sizes: samples in each of them.
            mode: "train" or "eval", the same for all.
        """
        raise NotImplementedError

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        """Return the scores of actions that were taken, by the policy, on the CPU. A host gives it.

        It is called in the thread of inference.

        Args:
            samples: [N, ...], as the learner's `to_score` gives them.
            values: True if there is a critic whose values are wanted, too.
        """
        raise NotImplementedError

    def apply_weights(self, state_dict: Tensors, version: int) -> None:
        """Take the weights of `version`: those that training changes, and of the first version all. Called in
        the thread of inference, between forward passes.

        A class that acts by a copy of its own extends it. The tensors are in memory that others write to once
        this has returned.
        """
        apply(self.policy_module(), state_dict)

    def weights_changed(self, version: int) -> None:
        """The policy has the weights of `version`; called in the thread of inference. A host may note it."""

    async def serve(self, settings: Any, requests: Handle, coordinator: Handle) -> None:
        """Answer batches of requests, by the newest weights, until the channels close.

        `settings` are a `RunSettings`.
        """
        generation = self.generation
        weights = WeightClient(coordinator, rank=self._inference_rank, generation=generation)
        # Nobody acts by other weights than the learner's: a successor of one that died has none yet.
        await load_next(weights=weights, policy=self, spans=self.spans)
        server = RequestServer(requests, rank=self._inference_rank, generation=generation)
        await together(
            [
                serve_policy(requests=server, policy=self, spans=self.spans),
                refresh_weights(weights=weights, policy=self, spans=self.spans),
            ]
        )

    async def act(self, batch: Sequence[Pending]) -> list[Any]:
        """One answer per request, in order; those for training and for evaluation are made apart.

        Where a request cannot be read, as its env worker has died, the answer is a `PeerError`.
        """
        # Before the lock: reading may wait for other nodes, and weights may change meanwhile.
        payloads = await asyncio.gather(
            *(read_sealed(pending.request.payload, self._reader) for pending in batch)
        )
        readable = [not isinstance(payload, PeerError) for payload in payloads]
        # The lock keeps a whole batch apart from a change of weights: its answers are of one version.
        async with self._model_lock:
            # Inside of the lock: a wait for new weights is no work.
            with self._busy.busy():
                readable_part = list(compress(batch, readable)), list(compress(payloads, readable))
                answers = iter(await self._policy_thread.call(partial(self._answers, *readable_part)))
        return [next(answers) if read else payload for read, payload in zip(readable, payloads, strict=True)]

    async def weight_types(self) -> dict[str, torch.dtype]:
        """The dtypes of the weights that the policy takes, by the names of its state dict."""
        return types_of(self.policy_module())

    async def load(self, version: int, data: Sequence[AbstractContextManager[Tensors]]) -> None:
        """Write new weights into the policy, between two forward passes and in their thread.

        `data` are the parts that differ from those that it has, in order.
        """
        await self.between_passes(self._load, version, data)

    async def between_passes(self, function: Callable[..., object], *arguments: object) -> None:
        """Do something to the policy in its thread, while no forward pass runs."""
        async with self._model_lock:
            await self._policy_thread.call(partial(function, *arguments))

    def build_policy(self, function: Callable[[], object], name: str) -> None:
        """Have `function` build the policy, which the config calls `name`, in the thread of inference.

        Raises:
            PolicyFailure: it cannot be built, or hangs meanwhile.
        """
        self._policy_thread.build(function, name)

    async def leave(self) -> None:
        """Have the policy leave its accelerator. A host whose processes take turns gives it."""
        raise NotImplementedError

    async def pop_busy(self) -> list[float]:
        """The share of time spent in forward passes since the last call."""
        return self._busy.pop()

    def _load(self, version: int, data: Sequence[AbstractContextManager[Tensors]]) -> None:
        with ExitStack() as opened:
            tensors: Tensors = {}
            for part in data:
                tensors |= opened.enter_context(part)
            self.apply_weights(tensors, version)
        # Behind the weights: should writing them fail, no score claims to be of this version.
        self._version_held = version
        self.weights_changed(version)
        self.begin_sampling(version)

    def begin_sampling(self, version: int) -> None:
        """If `sampling_seed` is given, draw by `version` what every run draws, whatever came before."""
        if self.sampling_seed is not None:
            seed_version(self.sampling_seed, version)

    def _answers(self, batch: list[Pending], payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        for index, pending in enumerate(batch):
            if pending.request.mode == "score":
                answers[index] = self._score(**payloads[index])
        # Apart, as a policy samples in one mode and takes the mean in the other.
        for mode in ("train", "eval"):
            indices = [index for index, pending in enumerate(batch) if pending.request.mode == mode]
            if indices:
                sizes = [batch[index].size for index in indices]
                answers.update(
                    zip(indices, self.answer([payloads[i] for i in indices], sizes, mode), strict=True)
                )
        return [answers[index] for index in range(len(batch))]

    @torch.no_grad()
    def _score(self, samples: dict[str, Any], values: bool) -> dict[str, Any]:
        return {"version": self._version_held, "scores": self.scores(samples, values=values)}
