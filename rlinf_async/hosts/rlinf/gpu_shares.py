"""The GPUs that several processes of a run share, from its config, with `explain`'s estimates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.gpu_shares import GPU_SHARES_KEY, SharedGpu
from rlinf_async.hosts.footprints import UNKNOWN_SIZE
from rlinf_async.hosts.rlinf.footprints import Estimate, estimated
from rlinf_async.hosts.rlinf.placement import ACCELERATOR, NODE, Machines, Resource, assignments
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.observe.spans import Process

OTHER_PROCESSES = {"env": str(Process.ENV), "reward": "reward worker"}
"""RLinf's components without a limit, in the words of the records."""


def shared_gpus(cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines) -> tuple[SharedGpu, ...]:
    """Return the GPUs with processes to be limited; none unless `async.advanced.gpu_shares` is on.

    On machines without GPUs a node stands for one.
    """
    if not settings.asynchrony.advanced.gpu_shares or settings.takes_turns:
        return ()
    estimate = estimated(cfg, settings)
    if estimate.model.source == UNKNOWN_SIZE.source:
        return ()
    ranks_of: dict[Resource, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for component, processes in assignments(cfg["cluster"], machines).items():
        for rank, resources in enumerate(processes):
            # torch uses the first GPU of a process, and a process on a node of GPUs uses none.
            if resources[0][0] == (ACCELERATOR if machines.gpus else NODE):
                ranks_of[resources[0]][component].append(rank)
    return tuple(
        _shared(_name(resource, machines), ranks, estimate)
        for resource, ranks in sorted(ranks_of.items())
        if sum(map(len, ranks.values())) > 1 and ("actor" in ranks or "rollout" in ranks)
    )


def _shared(name: str, ranks: Mapping[str, list[int]], estimate: Estimate) -> SharedGpu:
    return SharedGpu(
        name=name,
        learners=tuple(ranks.get("actor", ())),
        inference=tuple(ranks.get("rollout", ())),
        others=tuple(
            f"{OTHER_PROCESSES.get(component, component)} {rank}"
            for component, numbers in ranks.items()
            if component not in ("actor", "rollout")
            for rank in numbers
        ),
        learner_bytes=sum(estimate.learner.parts().values()),
        inference_bytes=estimate.inference,
    )


def _name(resource: Resource, machines: Machines) -> str:
    _, number = resource
    if not machines.gpus:
        return f"node {number}"
    on = f" of node {number // machines.gpus}" if machines.nodes > 1 else ""
    return f"GPU {number % machines.gpus}{on}"


def share_remarks(cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines) -> Iterator[str]:
    """Yield the reason why `async.advanced.gpu_shares` sets no limit, if it is on."""
    if not settings.asynchrony.advanced.gpu_shares:
        return
    if settings.takes_turns:
        yield f"{GPU_SHARES_KEY}=true sets no limit: learner and inference leave the GPU to each other"
    elif estimated(cfg, settings).model.source == UNKNOWN_SIZE.source:
        yield (
            f"{GPU_SHARES_KEY}=true sets no limit: the model's memory was not examined, as its number of "
            "parameters is not known without its checkpoint"
        )
    elif not shared_gpus(cfg, settings, machines):
        yield f"{GPU_SHARES_KEY}=true sets no limit: no two processes share a GPU"


def share_facts(
    cfg: Mapping[str, Any], settings: RLinfSettings, machines: Machines, *, total: float | None
) -> list[dict[str, Any]]:
    """Return the shares on each kind of GPU, as plain data.

    Args:
        total: bytes of a GPU; None if that is not known.
    """
    gpus = shared_gpus(cfg, settings, machines)
    words = "--gpu-memory shows them"
    counts = Counter(gpu.in_words(int(total)) if total is not None else words for gpu in gpus)
    return [{"gpus": count, "shares": text} for text, count in counts.items()]


def share_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result of `share_facts`, among those of `explain`, as rows of its table."""
    return [(f"  shares, each of {kind['gpus']}", kind["shares"]) for kind in facts["gpu_shares"]]
