"""The inference side of a run in one process: a policy that answers batches of requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import compress
from typing import Any

import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.loops.inference import PolicyThread, load_next, refresh_weights, serve_policy
from rlinf_async.loops.requests import Pending
from rlinf_async.loops.together import together
from rlinf_async.observe.meters import BusyMeter, Spread
from rlinf_async.ray_runtime.handles import Handle, RequestChannels
from rlinf_async.ray_runtime.processes.gpu_share import KeepsToShare
from rlinf_async.ray_runtime.processes.request_server import RequestServer
from rlinf_async.ray_runtime.processes.run_process import hand_over_quickly
from rlinf_async.ray_runtime.processes.seeds import seed_version
from rlinf_async.ray_runtime.publication.weight_file import Tensors
from rlinf_async.ray_runtime.publication.weights import WeightClient, apply, types_of
from rlinf_async.wire.payloads import read_each_sealed
from rlinf_async.wire.shown_memory import Reader


class InferenceWorker(KeepsToShare):
    """One inference rank; a host gives the policy and its answers.

    Weights change between forward passes, never inside one: both happen in the one thread of inference.
    """

    sampling_seed: int | None = None
    """The seed of this rank's sampling, which begins anew at every version, in a deterministic run; None in
    other runs."""

    def start_inference(
        self,
        *,
        rank: int,
        deadline_s: float = math.inf,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        """Begin as inference rank `rank`; `initializer` is called first in the inference thread.

        `deadline_s`: the longest wait of an env worker for an answer, in seconds.
        """
        hand_over_quickly()
        self._inference_rank = rank
        self._model_lock = asyncio.Lock()
        self._version_held = -1
        self._busy = BusyMeter()
        self._passes = Spread()
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
        """Return one answer per request, with the `version` that made it. A host gives them.

        Called in the inference thread.

        Args:
            payloads: the observations of the requests.
            sizes: the number of samples in each of them.
            mode: "train" or "eval", the same for all.
        """
        raise NotImplementedError

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        """Return the policy's scores of actions that were taken, on the CPU. A host gives them.

        Called in the inference thread.

        Args:
            samples: [N, ...], as the learner's `to_score` gives them.
            values: True if the critic's values are wanted, too.
        """
        raise NotImplementedError

    def apply_weights(self, state_dict: Tensors, version: int) -> None:
        """Load the weights of `version`: the changing ones, with the first version all of them. Called in the
        inference thread, between forward passes.

        A class that acts by a copy of the weights extends this. The memory of the tensors is overwritten by
        the learner after this has returned.
        """
        apply(self.policy_module(), state_dict)

    def weights_changed(self, version: int) -> None:
        """Called in the inference thread when the policy has the weights of `version`. A host may extend
        it.
        """

    async def serve(self, settings: Any, requests: RequestChannels, coordinator: Handle) -> None:
        """Answer batches of requests, with the newest weights, until the channels close.

        `settings` is a `RunSettings`.
        """
        generation = self.generation
        weights = WeightClient(coordinator, rank=self._inference_rank, generation=generation)
        # A rank acts only with weights of the learner: a new or restarted rank has not received any yet.
        await load_next(weights=weights, policy=self, spans=self.spans)
        server = RequestServer(
            requests,
            rank=self._inference_rank,
            generation=generation,
            deadline_s=settings.asynchrony.advanced.deadline_s,
        )
        await together(
            [
                serve_policy(requests=server, policy=self, spans=self.spans),
                refresh_weights(weights=weights, policy=self, spans=self.spans),
            ]
        )

    async def act(self, batch: Sequence[Pending]) -> list[Any]:
        """Return one answer per request, in order; training and evaluation have forward passes of their own.

        The answer is a `PeerError` where a request cannot be read because its env worker has died.
        """
        # Before the lock: reading may wait for other nodes, and weights may change meanwhile.
        payloads = await read_each_sealed([pending.request.payload for pending in batch], self._reader)
        readable = [not isinstance(payload, PeerError) for payload in payloads]
        # Under the lock no weights change, so that all answers of a batch are of one version.
        async with self._model_lock:
            # Inside the lock: a wait for new weights does not count as work.
            began = time.monotonic()
            with self._busy.busy():
                readable_part = list(compress(batch, readable)), list(compress(payloads, readable))
                answers = iter(await self._policy_thread.call(partial(self._answers, *readable_part)))
            self._passes.add(time.monotonic() - began)
        return [next(answers) if read else payload for read, payload in zip(readable, payloads, strict=True)]

    async def weight_types(self) -> dict[str, torch.dtype]:
        """The dtypes of the weights that the policy takes, by the names of its state dict."""
        return types_of(self.policy_module())

    async def load(self, version: int, data: Sequence[AbstractContextManager[Tensors]]) -> None:
        """Write new weights into the policy, in the inference thread and between two forward passes.

        `data` are the parts of the weights that the policy does not have yet, in order.
        """
        await self.between_passes(self._load, version, data)

    async def between_passes(self, function: Callable[..., object], *arguments: object) -> None:
        """Call `function` in the inference thread, while no forward pass runs."""
        async with self._model_lock:
            await self._policy_thread.call(partial(function, *arguments))

    def build_policy(self, function: Callable[[], object], name: str) -> None:
        """Have `function` build the policy, named `name` in the config, in the inference thread.

        Raises:
            PolicyFailure: `function` has failed, or hangs.
        """
        self._policy_thread.build(function, name)

    async def leave(self) -> None:
        """Have the policy leave its accelerator. A host with `takes_turns` gives it."""
        raise NotImplementedError

    async def passes(self) -> Spread:
        """The seconds of the forward passes up to now."""
        return self._passes

    async def pop_busy(self) -> list[float]:
        """The share of time spent in forward passes since the last call."""
        return self._busy.pop()

    def _load(self, version: int, data: Sequence[AbstractContextManager[Tensors]]) -> None:
        with ExitStack() as opened:
            tensors: Tensors = {}
            for part in data:
                tensors |= opened.enter_context(part)
            self.apply_weights(tensors, version)
        # After the weights: if writing them fails, no score carries this version.
        self._version_held = version
        self.weights_changed(version)
        self.begin_sampling(version)

    def begin_sampling(self, version: int) -> None:
        """Seed sampling by `version` alone, independent of earlier samples, if `sampling_seed` is set."""
        if self.sampling_seed is not None:
            seed_version(self.sampling_seed, version)

    def _answers(self, batch: list[Pending], payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        for index, pending in enumerate(batch):
            if pending.request.mode == "score":
                answers[index] = self._score(**payloads[index])
        # One pass per mode: a policy samples in training, and takes the mean in evaluation.
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
