"""A rollout worker in a run: whom it serves, and how new weights come by RLinf's own transport."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

import torch
from rlinf.workers.rollout.hf import huggingface_worker as stock_rollout

from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from rlinf_async.loops.request_broker import Pending
from rlinf_async.observe.spans import SpanLog, read_spans
from rlinf_async.ray_runtime import inference_worker
from rlinf_async.ray_runtime.wire import seal
from tests.hosts.rlinf.learners import without_ray
from tests.hosts.rlinf.workers import config, in_one_process, rollout_worker
from tests.making import request


def test_a_rank_serves_its_own_requests_in_the_sizes_of_the_run(monkeypatch):
    joined = []

    async def serving(*, requests, **_):
        joined.append(requests)

    monkeypatch.setattr(inference_worker, "serve_policy", serving)
    monkeypatch.setattr(
        inference_worker, "WeightClient", lambda *given, **named: joined.append((given, named))
    )
    monkeypatch.setattr(inference_worker, "RequestServer", lambda *given, **named: (given, named))
    settings = SimpleNamespace(buckets=(4, 8), publishes_beside_training=False)
    payload = {"obs": {"states": torch.zeros(3, 4)}, "final_obs": None}
    with in_one_process(), without_ray(2, 4):
        worker = rollout_worker(config())
        asyncio.run(worker.serve(settings, "requests", "coordinator"))
        asyncio.run(worker.act([Pending(number=0, request=request(0, 3, payload=seal(payload)))]))
    own = {"rank": 2, "generation": 0}
    assert joined == [(("coordinator",), own), (("requests",), own)]
    assert worker.hf_model.asked == [4]


@pytest.mark.parametrize("offloads", [True, False])
def test_weights_of_rlinfs_own_transport_begin_sampling_anew_on_an_accelerator_that_is_free(
    offloads, monkeypatch, tmp_path
):
    order = []

    async def sync(worker):
        worker.version = 3
        order.append("weights")

    monkeypatch.setattr(stock_rollout.MultiStepRolloutWorker, "sync_model_from_actor", sync)
    monkeypatch.setattr(BatchingRolloutWorker, "spans", SpanLog(tmp_path))

    def note(*what):
        order.append((*what, threading.current_thread().name.split("_")[0]))

    with in_one_process():
        worker = rollout_worker(config(f"rollout.enable_offload={offloads}"))
        worker.begin_sampling = note
        worker.hf_model.to = lambda device: note(str(device))
        asyncio.run(worker.leave())
        asyncio.run(worker.sync_model_from_actor())
    moved = [[("cpu", "inference")], [(str(worker.device), "inference")]] if offloads else [[], []]
    assert order == [*moved[0], "weights", (3, "inference"), *moved[1]]
    kinds = [span["kind"] for span in read_spans(tmp_path)]
    assert kinds == (["offload", "load", "offload"] if offloads else ["load"])
