"""How new weights reach the inference ranks, as the driver sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.remote_calls import Fleet

Transport = Callable[[int], None]
"""A framework's own way of bringing the learner's weights to all inference ranks, as those of a version."""


class Publication:
    """Follows each version from the learner to all inference ranks.

    Beside training, the learner offers its weights at the end of `learn` and goes on, and inference ranks
    fetch them. A framework's own transport, for those who ask for it, stops learner and inference.
    """

    def __init__(
        self, fleet: Fleet, settings: RunSettings, coordinator: Handle, *, transport: Transport | None = None
    ) -> None:
        """`transport` is used with `async.publication=host`, and returns when the weights have arrived.

        Raises:
            ValueError: a run that asks for the transport of a framework that has none here.
        """
        if transport is None and not settings.publishes_beside_training:
            raise ValueError(
                f"async.publication={settings.asynchrony.publication!r}: the framework of this run has no "
                "transport of its own for weights; use beside"
            )
        self._fleet = fleet
        self._transport = None if settings.publishes_beside_training else transport
        self._deterministic = settings.asynchrony.deterministic
        self._coordinator = coordinator

    def first(self, version: int) -> None:
        """Give every inference rank the weights with which the run begins."""
        if self._transport is None:
            self._fleet.run("learner", "expect_receivers", self._fleet.run("inference", "weight_types")[0])
            self._fleet.run("learner", "offer_weights", version, self._coordinator)
            self.wait(version, self.follow(version))
        else:
            self.wait(version, self._carry(self._transport, version))

    def follow(self, version: int) -> list[Any]:
        """Calls that end when every inference rank acts by `version`, which the learner has just reached."""
        if self._transport is None:
            # If the thread that sends the weights fails, nobody else would notice before the deadline.
            self._fleet.watch(self._fleet.call("learner", "weights_sent"), "sending weights")
            return self._fleet.call("coordinator", "weights_published", version)
        if self._deterministic:
            self._fleet.run("coordinator", "collected", version)
        return self._carry(self._transport, version)

    def wait(self, version: int, published: list[Any]) -> list[float | None]:
        """Wait for what `follow` has returned; the seconds from offer to arrival, where they are known."""
        return self._fleet.wait(published, f"the weights of version {version} to reach the inference ranks")

    def _carry(self, transport: Transport, version: int) -> list[Any]:
        transport(version)
        return self._fleet.call("coordinator", "publish", version)
