"""The way of new weights to the inference ranks, as the driver sees it."""

from __future__ import annotations

from typing import Any

from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.remote_calls import Fleet


class Publication:
    """Follows each version from the learner to all inference ranks.

    The learner offers its weights at the end of `learn` and goes on, and inference ranks fetch them.
    """

    def __init__(self, fleet: Fleet, coordinator: Handle, *, keeps: bool) -> None:
        """`keeps`: True if inference ranks may be started again, and need all weights then."""
        self._fleet = fleet
        self._coordinator = coordinator
        self._keeps = keeps

    def first(self, version: int) -> None:
        """Give every inference rank the weights with which the run begins."""
        types = self._fleet.run("inference", "weight_types")[0]
        self._fleet.run("learner", "expect_receivers", types, self._keeps)
        self._fleet.run("learner", "offer_weights", version, self._coordinator)
        self.wait(version, self.follow(version))

    def follow(self, version: int) -> list[Any]:
        """Calls that end when every inference rank acts by `version`, which the learner has just reached."""
        # If the thread that sends the weights fails, nobody else would notice before the deadline.
        self._fleet.watch(self._fleet.call("learner", "weights_sent"), "sending weights")
        return self._fleet.call("coordinator", "weights_published", version)

    def wait(self, version: int, published: list[Any]) -> list[float]:
        """Wait for what `follow` has returned; the seconds from offer to arrival."""
        return self._fleet.wait(published, f"the weights of version {version} to reach the inference ranks")
