"""Environments that are rebuilt, and the seeds that they get."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock

from omegaconf import DictConfig

from rlinf_async.hosts.simulators import reseeded


class Rebuilds:
    """Counts the rebuilds of the environments of each stage of an env worker.

    Environments for training get another seed each time, or their first initial states would come again and
    again; those for evaluation keep theirs, as every evaluation is of the same episodes. Each stage is
    counted in its own thread.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._renewing = Lock()

    def count(self, mode: str, stage: int) -> None:
        """Count one rebuild of the environments of `stage`, which is about to begin."""
        self._counts[mode, stage] += 1

    def seeded(self, mode: str, stage: int, section: DictConfig) -> DictConfig:
        """The section to build those of `stage` from, with the seed that is theirs now."""
        if mode != "train" or section.get("seed") is None:
            return section
        section = copy.deepcopy(section)
        section.seed = reseeded(section.seed, self._counts[mode, stage])
        return section

    @contextmanager
    def renewing(self, stage: int, step: int, *, in_processes: bool) -> Iterator[None]:
        """Enter the block in which the training environments of `stage` are rebuilt at the checkpoint
        after `step`.

        Their seed follows from `step`, however often they have been built before. Stages whose simulators are
        not `in_processes`, in processes of their own, take turns.
        """
        with nullcontext() if in_processes else self._renewing:
            self._counts["train", stage] = step - 1
            yield


def start_again(train: DictConfig, *, generation: int) -> None:
    """Give the section for training another seed in a process that takes the place of one that has died."""
    if generation and train.get("seed") is not None:
        train.seed = reseeded(train.seed, 0, generation=generation)
