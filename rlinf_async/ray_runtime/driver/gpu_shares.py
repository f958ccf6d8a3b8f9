"""GPUs that processes of a run have in common, as its driver sees them: limits, a watch, errors in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf_async.core.gpu_shares import (
    GPU_SHARES_KEY,
    GpuUse,
    SharedGpu,
    held_by_others,
    names_in_words,
    size_in_words,
)
from rlinf_async.observe.events import Ending
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.driver.revivals import PROCESS_OF_GROUP, Member
from rlinf_async.ray_runtime.handles import remote_method
from rlinf_async.ray_runtime.processes.gpu_share import KeepsToShare, KeptShare

SMALLER = {"learner": "micro-batches", "inference": "batches (async.rollout.max_batch_size)"}
LACK_PATTERN = re.compile(
    r"Tried to allocate (?P<tried>[\d.]+) (?P<tried_unit>[KMG]iB|bytes)\..*? of which "
    r"(?P<free>[\d.]+) (?P<free_unit>[KMG]iB|bytes) is free",
    re.DOTALL,
)
"""torch's words about an allocation that has failed."""
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, kw_only=True)
class Limited:
    """A process with a limit."""

    group: str
    gpu: SharedGpu
    kept: KeptShare

    @property
    def share(self) -> str:
        """The share in words, with the estimate that it was computed from."""
        estimate = self.gpu.learner_bytes if self.group == "learner" else self.gpu.inference_bytes
        return (
            f"its share of {self.gpu.name}, {size_in_words(self.kept.bytes)} of "
            f"{size_in_words(self.kept.total)} (estimated without activations: {size_in_words(estimate)})"
        )


class GpuShares:
    """Holds learner and inference ranks to their shares of GPUs, and watches the memory of others."""

    def __init__(
        self, fleet: Fleet, gpus: Sequence[SharedGpu], *, run_dir: Path, say: Callable[[str], None]
    ) -> None:
        self._fleet, self._gpus, self._run_dir, self._say = fleet, gpus, run_dir, say
        self._gpu_of: dict[Member, SharedGpu] = {
            (group, rank): gpu
            for gpu in gpus
            for group, ranks in (("learner", gpu.learners), ("inference", gpu.inference))
            for rank in ranks
        }
        self._limited: dict[str, Limited] = {}
        self._others: dict[str, int] = {}
        """The bytes of processes without a limit at the last look, by GPU."""
        self._blamed: set[str] = set()

    def set_limits(self) -> None:
        """Limit every process on a GPU that is shared; called before models are built."""
        members = list(self._gpu_of)
        calls = [self.limit(group, rank, self._fleet.actors(group)[rank]) for group, rank in members]
        answers = self._fleet.wait(calls, "keep_to_share on inference and learner workers")
        for (group, rank), kept in zip(members, answers, strict=True):
            if kept is not None:
                name = PROCESS_OF_GROUP[group].numbered(rank)
                self._limited[name] = Limited(group=group, gpu=self._gpu_of[group, rank], kept=kept)
        for text, count in Counter(map(self._in_words, self._gpus)).items():
            self._say(
                f"{GPU_SHARES_KEY}: each of {count} GPUs {text}"
                if count > 1
                else f"{GPU_SHARES_KEY}: a GPU {text}"
            )

    def limit(self, group: str, rank: int, actor: Any) -> Any:
        """Start a call that limits one process; None if it shares no GPU."""
        gpu = self._gpu_of.get((group, rank))
        return None if gpu is None else remote_method(actor, KeepsToShare.keep_to_share).remote(gpu, group)

    def look(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Look at the answers of all processes, and name, once, those that hold more than is left to them."""
        for gpu in self._gpus:
            limited = {name: each for name, each in self._limited.items() if each.gpu is gpu}
            uses = {
                name: GpuUse(**answer["gpu"])
                for name in limited
                if (answer := answers.get(name)) is not None and "gpu" in answer
            }
            # Until all have answered, the memory of the others is not known.
            if not limited or len(uses) < len(limited):
                continue
            held = self._others[gpu.name] = held_by_others(uses)
            most = next(iter(limited.values())).kept.others
            if gpu.others and held > most and gpu.name not in self._blamed:
                self._blamed.add(gpu.name)
                self._blame(gpu, list(limited), held, most)

    def told(self, ending: Ending, error: BaseException, *, again: str) -> Ending:
        """Return the ending of a limited process without memory with its share in words; others unchanged.

        `again`: the words for starting the run again.
        """
        limited = self._limited.get(ending.process)
        if limited is None or not ending.lacks_memory:
            return ending
        gpu = limited.gpu
        if is_full(str(error)):
            others = f"; {self._others_in_words(limited)}" if gpu.others else ""
            return replace(
                ending,
                why=f"{ending.why}: {gpu.name} is full, and the process is within {limited.share}{others}",
                what_next=f"use fewer environments, or place fewer processes on {gpu.name}, and {again}",
            )
        return replace(
            ending,
            why=f"{ending.why}: it needs more than {limited.share}",
            what_next=(
                f"use smaller {SMALLER[limited.group]}, or {GPU_SHARES_KEY}=false for no limit, and {again}"
            ),
        )

    def _in_words(self, gpu: SharedGpu) -> str:
        kept = next((each.kept for each in self._limited.values() if each.gpu is gpu), None)
        if kept is None:
            return "has no limits, as the estimates of its processes do not fit"
        note = (
            " (no GPU is here: this machine's memory stands in for one, and limits nothing)"
            if kept.stands_in
            else ""
        )
        return f"of {size_in_words(kept.total)}: {gpu.in_words(kept.total)}{note}"

    def _others_in_words(self, limited: Limited) -> str:
        held = self._others.get(limited.gpu.name)
        most, names = size_in_words(limited.kept.others), names_in_words(limited.gpu.others)
        if held is None:
            return f"{most} are left to {names}"
        return f"{names} held about {size_in_words(held)}, and {most} are left to them"

    def _blame(self, gpu: SharedGpu, limited: Sequence[str], held: int, most: int) -> None:
        sentence = (
            f"{names_in_words(gpu.others)}, with simulators, hold about {size_in_words(held)} of {gpu.name}, "
            f"where {size_in_words(most)} are left to them beside {names_in_words(limited)} "
            f"({GPU_SHARES_KEY}): use fewer environments, or place simulators on other GPUs"
        )
        self._say(sentence)
        RunDir(self._run_dir).record(Fault(process=gpu.others[0], what="runs out", error=sentence))


def is_full(message: str) -> bool:
    """Return True if torch says that the GPU has less free memory than an allocation needs.

    Otherwise the limit of the process has stopped it.
    """
    found = LACK_PATTERN.search(message)
    if found is None:
        return False
    tried, free = (float(found[name]) * UNITS[found[f"{name}_unit"]] for name in ("tried", "free"))
    return free < tried
