"""How new weights reach the inference ranks, as the driver sees it."""

from __future__ import annotations

from typing import Any

from rlinf_async.hosts.rlinf.fleet import Fleet
from rlinf_async.hosts.rlinf.settings import Settings


class Publication:
    """Follows each version from the learner to all inference ranks.

    Beside training, the learner offers its weights at the end of `learn` and goes on, and inference ranks
    fetch them. RLinf's own transport, for those who ask for it, stops learner and inference.
    """

    def __init__(self, fleet: Fleet, settings: Settings, trajectories: Any) -> None:
        self._fleet = fleet
        self._beside_training = settings.publishes_beside_training
        self._deterministic = settings.asynchrony.deterministic
        self._trajectories = trajectories

    def first(self, version: int) -> None:
        """Give every inference rank the weights with which the run begins."""
        if self._beside_training:
            self._fleet.run("actor", "expect_receivers", self._fleet.run("rollout", "weight_types")[0])
            self._fleet.run("actor", "offer_weights", version, self._trajectories)
            self.wait(version, self.follow(version))
        else:
            self.wait(version, self._sync(version))

    def follow(self, version: int) -> list[Any]:
        """Calls that end when every inference rank acts by `version`, which the learner has just reached."""
        if self._beside_training:
            # If the thread that sends the weights fails, nobody else would notice before the deadline.
            self._fleet.watch(self._fleet.call("actor", "weights_sent"), "sending weights")
            return self._fleet.call("trajectories", "weights_published", version)
        if self._deterministic:
            self._fleet.run("trajectories", "collected", version)
        return self._sync(version)

    def wait(self, version: int, published: list[Any]) -> list[float | None]:
        """Wait for what `follow` has returned; the seconds from offer to arrival, where they are known."""
        return self._fleet.wait(published, f"the weights of version {version} to reach the inference ranks")

    def _sync(self, version: int) -> list[Any]:
        """RLinf's own transport, which takes learner and inference ranks out of their work."""
        # Awaited by itself: Ray does not promise that calls of an async actor run in their order.
        self._fleet.run("actor", "publish_version", version)
        sync = self._fleet.call("rollout", "sync_model_from_actor")
        sync += self._fleet.call("actor", "sync_model_to_rollout")
        self._fleet.wait(sync, f"the weights of version {version} to reach the inference ranks")
        return self._fleet.call("trajectories", "publish", version)
