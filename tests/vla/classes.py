"""A model of RLinf between our inference rank and our learner, in one process and without Ray."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from rlinf.scheduler.hardware import AcceleratorType

from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.observations import with_echoes
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from rlinf_async.loops.inference import PolicyThread
from tests.hosts.rlinf.passes import recompute


def observations(size: int, *, seed: int = 1, side: int = 256) -> dict[str, Any]:
    """What RLinf's LIBERO environments show: two pictures of `side` x `side`, a state and a sentence."""
    draw = torch.Generator().manual_seed(seed)

    def pictures() -> torch.Tensor:
        return torch.randint(0, 256, (size, side, side, 3), dtype=torch.uint8, generator=draw)

    return {
        "main_images": pictures(),
        "wrist_images": pictures(),
        "extra_view_images": None,
        "states": torch.randn(size, 8, generator=draw),
        "task_descriptions": ["pick up the ketchup and place it in the basket"] * size,
    }


ANSWER_TIMEOUT_S = 600.0


def inference(
    model: torch.nn.Module, cfg: DictConfig, buckets: tuple[int, ...] = ()
) -> BatchingRolloutWorker:
    """Our rollout worker over `model`, as its `init_worker` leaves it."""
    worker = object.__new__(BatchingRolloutWorker)
    worker.cfg, worker.model_cfg, worker.algorithm_cfg = cfg, cfg.actor.model, cfg.algorithm
    model.eval()
    worker.hf_model, worker.expert_model, worker._version_held = model, None, 0
    worker._inference_rank = 0
    worker._buckets, worker._rank, worker.enable_cuda_graph = buckets, 0, False
    worker._has_graphs = worker._takes_turns = False
    thread = ThreadPoolExecutor(1)
    worker._policy_thread = PolicyThread("inference rank 0", thread, deadline_s=ANSWER_TIMEOUT_S)
    worker._timer_metrics, worker._accelerator_type = {}, AcceleratorType.NO_ACCEL
    worker.setup_sample_params()
    return worker


def answers(worker: BatchingRolloutWorker, *observed: dict[str, Any], mode: str = "train") -> list[Any]:
    """The answers to one batch of requests, one per element of `observed`."""
    payloads = [{"obs": one, "final_obs": None} for one in observed]
    return worker.answer(payloads, [len(one["states"]) for one in observed], mode)


def learner(model: torch.nn.Module, cfg: DictConfig) -> Any:
    """What `recompute` needs of our actor worker."""
    return SimpleNamespace(cfg=cfg, model=model, device="cpu", amp_context=nullcontext())


def rollout(worker: BatchingRolloutWorker, observed: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Decisions of one shard, as the learner receives them: the fields [T, B, ...], and the last inputs."""
    acted = [(answers(worker, one)[0], one) for one in observed]
    inputs = [with_echoes(answer["forward_inputs"], answer["echoes"], one) for answer, one in acted]
    given = [answer for answer, _ in acted]
    fields = {
        "forward_inputs": {name: torch.stack([each[name] for each in inputs[:-1]]) for name in inputs[0]},
        "prev_logprobs": torch.stack([answer["prev_logprobs"] for answer in given[:-1]]),
    }
    if given[0]["prev_values"] is not None:
        fields["prev_values"] = torch.stack([answer["prev_values"] for answer in given])
    return fields, inputs[-1]


def rescored(
    model: torch.nn.Module, cfg: DictConfig, fields: Any, last: Any, *, micro_batch_size: int, values: bool
) -> Any:
    """`fields` after our learner's pass without gradients, at the weights that acted."""
    again = map_tensors(torch.clone, fields)
    recompute(learner(model, cfg), again, last, micro_batch_size=micro_batch_size, values=values)
    return again


def off_by(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two tensors of one shape."""
    assert one.shape == other.shape
    return (one.float() - other.float()).abs().max().item()
