"""The seeds of simulators that are built anew."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig


def reseeded(seed: int, times: int, *, generation: int = 0) -> int:
    """Return the seed of environments that were rebuilt `times` times since their process started.

    Seeds differ by multiples of a large prime, as simulators add their own small numbers to a seed.
    """
    # Each generation of a process has 1000 seeds: with more rebuilds they would repeat the next generation's.
    return seed + 7919 * (times + 1000 * generation)


class Rebuilds:
    """Counts the rebuilds of the environments of each stage of an env worker.

    Training environments get another seed with each rebuild, or they would repeat their first initial states.
    Evaluation environments keep their seed, as every evaluation has the same episodes. Each stage is counted
    in its own thread.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._renewing = Lock()

    def count(self, mode: str, stage: int) -> None:
        """Count one rebuild of the environments of `stage`, just before it begins."""
        self._counts[mode, stage] += 1

    def count_all(self, mode: str, stages: int) -> None:
        """Count one rebuild of all environments, which then have `stages` stages."""
        most = max((count for (of, _), count in self._counts.items() if of == mode), default=0)
        self._counts.update({(mode, stage): most + 1 - self._counts[mode, stage] for stage in range(stages)})

    def seeded(self, mode: str, stage: int, section: DictConfig) -> DictConfig:
        """Return the section for building the environments of `stage`, with their current seed."""
        if mode != "train" or section.get("seed") is None:
            return section
        # A copy, as the next rebuild starts from the config's seed again.
        section = copy.deepcopy(section)
        section.seed = reseeded(section.seed, self._counts[mode, stage])
        return section

    @contextmanager
    def renewing(self, stage: int, step: int, *, in_processes: bool) -> Iterator[None]:
        """Set the seed for rebuilding the training environments of `stage` at the checkpoint after `step`.

        The seed depends on `step` alone, not on earlier rebuilds. Stages rebuild one after the other, unless
        each simulator is in a process of its own (`in_processes`).
        """
        with nullcontext() if in_processes else self._renewing:
            # The rebuild inside the block adds one.
            self._counts["train", stage] = step - 1
            yield


def start_again(train: DictConfig, *, generation: int) -> None:
    """Give the training section another seed if this process replaces one that died."""
    if generation and train.get("seed") is not None:
        # In place, as rebuilds add to this seed (`Rebuilds.seeded`).
        train.seed = reseeded(train.seed, 0, generation=generation)
