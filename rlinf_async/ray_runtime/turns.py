"""Learner, inference and simulators on the same accelerators in turn, where no level has them overlap.

Frameworks offload a part while another works. Levels 1 and 3 have them work at the same time; with level 2
alone the order of a step is the framework's own, and so everything that it offloads can leave:

    rollouts   inference and simulators are loaded, the learner is not
    training   once the whole batch is collected, inference and simulators leave, and the learner comes back
    weights    the learner leaves as soon as it has copied its new weights; they bring inference back
"""

from __future__ import annotations

from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.remote_calls import Fleet


class Turns:
    """Has inference and simulators leave in time; the learner and new weights do the rest by themselves."""

    def __init__(self, fleet: Fleet, coordinator: Handle, *, batches: int) -> None:
        """`batches` is the number of global batches of the run."""
        self._fleet = fleet
        self._coordinator = coordinator
        self._batches = batches
        self._turn_of: int | None = None

    def give_to_learner(self, batch: int) -> None:
        """Wait until `batch` is collected, if the run has it, and have the others leave; once a batch."""
        if self._turn_of == batch:
            return
        self._turn_of = batch
        if batch < self._batches:
            collected = [self._coordinator.collected.remote(batch + 1)]
            self._fleet.wait(collected, f"the rollouts of batch {batch}")
        leaving = self._fleet.call("inference", "leave") + self._fleet.call("env", "leave")
        self._fleet.wait(leaving, "inference and simulators to leave their accelerators")
