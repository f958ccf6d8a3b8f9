"""Captured policies: RLinf's own capturing and replaying, with CUDA's part of it calculated on the CPU.

A captured graph takes one batch size, reads fixed memory and writes fixed memory. The stand-in keeps all
three properties; RLinf's checks of shapes and types are its own.
"""

import asyncio
import inspect
from unittest import mock

import pytest
import torch
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy
from rlinf.utils import cuda_graph
from rlinf.workers.rollout.hf import huggingface_worker as stock_rollout
from torch.distributions import Normal

from rlinf_async.hosts.rlinf.config import resolve
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from tests.hosts.rlinf.workers import ACTION, config, in_one_process, pending, settings_of


class Graph:
    """What was captured: replaying calculates again, from and into the memory of the capture."""

    def __init__(self, spec):
        self._model = inspect.getclosurevars(spec.func).nonlocals["self"]
        self._calculate, self._inputs = spec.func, spec.inputs
        self.outputs = self._fresh()

    def replay(self):
        cuda_graph._copy_tree_(self.outputs, self._fresh())

    def _fresh(self):
        # RLinf puts the replay in the place of what was captured.
        captured = type(self._model)._generate_actions.__get__(self._model)
        with mock.patch.object(self._model, "_generate_actions", captured), torch.inference_mode():
            return self._calculate(self._inputs)


class Manager(cuda_graph.CUDAGraphManager):
    def __init__(self):
        super().__init__(device=torch.device("cpu"), create_graph_pool=False)

    def capture(self, spec, use_shared_pool=True):
        del use_shared_pool
        graph = Graph(spec)
        self.graphs[spec.name] = cuda_graph.GraphSpec(
            spec.name, graph, spec.inputs, graph.outputs, spec.external_inputs
        )


def policy():
    torch.manual_seed(0)
    return MLPPolicy(4, ACTION, num_action_chunks=1, add_value_head=True, add_q_head=False)


@pytest.fixture(scope="module", params=["full", "train"])
def worker(request):
    overrides = (
        "rollout.enable_cuda_graph=true",
        "runner.val_check_interval=1",
        "actor.model.num_action_chunks=1",
    )
    with (
        in_one_process(),
        mock.patch.object(stock_rollout, "get_model", return_value=policy()),
        mock.patch.object(cuda_graph, "CUDAGraphManager", Manager),
    ):
        cfg = config(*overrides, f"async.mode={request.param}")
        made = BatchingRolloutWorker(cfg)
        made.torch_device_type = "cuda"
        made.init_worker()
        made._buckets = settings_of(cfg).buckets
        for version in (0, 1):
            made.weights_changed(version)
        yield made


def states(size, seed):
    return torch.randn((size, 4), generator=torch.Generator().manual_seed(seed))


def asked(shard, size, *, mode="train", final=None):
    return pending(shard, size, {"states": states(size, shard)}, mode=mode, final=final)


def test_graphs_are_captured_for_the_largest_batch_that_the_rank_can_meet(worker):
    sizes = {spec.inputs["states"].shape[0] for spec in worker.hf_model.cuda_graph_manager.graphs.values()}
    assert sizes == ({12} if worker.cfg["async"].mode == "full" else {16})


def test_answers_of_a_captured_policy_are_what_it_says_of_each_state_whatever_the_batch(worker):
    finals = states(3, 9)
    batch = [asked(0, 2), asked(1, 3, final={"states": finals}), asked(2, 1, mode="eval")]
    plain = policy()
    with torch.no_grad():
        for answer, (shard, size) in zip(asyncio.run(worker.act(batch))[:2], ((0, 2), (1, 3)), strict=True):
            seen = states(size, shard)
            assert torch.equal(answer["forward_inputs"]["states"], seen)
            mean, log_std = plain._sample_actions(seen)
            action = answer["forward_inputs"]["action"]
            assert torch.equal(action.reshape(-1, 1, ACTION), answer["actions"])
            logprobs = Normal(mean, log_std.exp()).log_prob(action)
            torch.testing.assert_close(answer["prev_logprobs"], logprobs)
            torch.testing.assert_close(answer["prev_values"], plain.value_head(seen))
        found = asyncio.run(worker.act(batch))
        torch.testing.assert_close(found[1]["bootstrap_values"], plain.value_head(finals)[:, :1])
        mean, _ = plain._sample_actions(states(1, 2))
        torch.testing.assert_close(found[2]["actions"], mean.reshape(1, 1, ACTION))


def test_an_answer_stays_as_it_is_when_the_next_batch_is_answered(worker):
    (answer,) = asyncio.run(worker.act([asked(0, 2)]))
    before = {name: answer[name].clone() for name in ("actions", "prev_logprobs", "prev_values")}
    asyncio.run(worker.act([asked(5, 4)]))
    assert all(torch.equal(answer[name], value) for name, value in before.items())


def test_a_rank_captures_what_the_ranks_of_the_run_leave_to_it():
    """Of two env workers and two inference ranks, each has the environments of one."""
    cfg = config("rollout.enable_cuda_graph=true", "async.mode=train", "rollout.pipeline_stage_num=1")
    assert resolve(cfg, sizes={"env": 2, "rollout": 2, "actor": 1}).buckets == (6,)


def test_graphs_are_let_go_before_the_policy_leaves_and_captured_when_it_is_back(worker, monkeypatch):
    told = []
    for name in ("release_cuda_graph", "capture_cuda_graph", "to"):
        monkeypatch.setattr(worker.hf_model, name, lambda *_, name=name, **__: told.append(name))
    monkeypatch.setattr(worker, "_takes_turns", True)
    worker._leave()
    worker.weights_changed(2)
    assert told == ["release_cuda_graph", "to", "to", "capture_cuda_graph"]


def test_without_cuda_nothing_is_captured_and_the_run_goes_on():
    with in_one_process():
        worker = BatchingRolloutWorker(config("rollout.enable_cuda_graph=true"))
        worker.init_worker()
        worker.weights_changed(0)
    assert not worker._has_graphs
