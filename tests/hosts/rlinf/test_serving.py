"""A rollout worker in a run: whom it serves."""

import asyncio
from types import SimpleNamespace

import torch

from rlinf_async.loops.request_broker import Pending
from rlinf_async.ray_runtime.processes import inference_worker
from rlinf_async.wire.payloads import seal
from tests.hosts.rlinf.learners import without_ray
from tests.hosts.rlinf.workers import config, in_one_process, rollout_worker
from tests.making import request


def test_a_rank_serves_its_own_requests_in_the_sizes_of_the_run(monkeypatch):
    joined = []

    async def serving(*, requests, **_):
        joined.append(requests)

    async def loading(**_):
        """Weights come by themselves."""

    monkeypatch.setattr(inference_worker, "serve_policy", serving)
    monkeypatch.setattr(inference_worker, "load_next", loading)
    monkeypatch.setattr(inference_worker, "refresh_weights", loading)
    monkeypatch.setattr(
        inference_worker, "WeightClient", lambda *given, **named: joined.append((given, named))
    )
    monkeypatch.setattr(inference_worker, "RequestServer", lambda *given, **named: (given, named))
    settings = SimpleNamespace(buckets=(4, 8))
    payload = {"obs": {"states": torch.zeros(3, 4)}, "final_obs": None}
    with in_one_process(), without_ray(2, 4):
        worker = rollout_worker(config())
        asyncio.run(worker.serve(settings, "requests", "coordinator"))
        asyncio.run(worker.act([Pending(request=request(0, 3, payload=seal(payload)))]))
    own = {"rank": 2, "generation": 0}
    assert joined == [(("coordinator",), own), (("requests",), own)]
    assert worker.hf_model.asked == [4]
