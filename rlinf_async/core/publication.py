"""Publication: which version of the weights every inference rank has."""

from __future__ import annotations


class PublicationBoard:
    """Records which versions were offered and which were applied; a pure state machine that neither waits nor
    measures time.

    Versions are offered in increasing order. A rank that is behind wants the newest version; it may never
    apply the versions in between. A version is published once every rank has it or a newer one. A lost rank
    holds up no version until its successor takes weights: from then on, no version is published that the
    successor may not have. So every rank acts with a published version, or a newer one, and the published
    version never decreases.
    """

    def __init__(self, *, ranks: int) -> None:
        if ranks < 1:
            raise ValueError(f"ranks={ranks} must be at least 1")
        self.offered: int | None = None
        """The newest version offered."""
        self.published: int | None = None
        """The newest version that every rank has or has passed; None until every rank has weights."""
        self._has: list[int | None] = [None] * ranks
        self._lost_ranks: set[int] = set()

    def offer(self, version: int) -> None:
        """`version` may be applied from now on, in place of all earlier ones."""
        if self.offered is not None and version <= self.offered:
            raise ValueError(f"version {version} was offered after version {self.offered}")
        self.offered = version

    def wanted(self, rank: int) -> int | None:
        """The version that `rank` should apply next, or None while it has the newest."""
        return self.offered if self.offered != self._has[rank] else None

    def applied(self, rank: int, version: int) -> None:
        """`rank` acts with `version` from now on."""
        has = self._has[rank]
        if self.offered is None or version > self.offered:
            raise ValueError(
                f"rank {rank} applied version {version}, but {self.offered} is the newest offered"
            )
        if has is not None and version <= has:
            raise ValueError(f"rank {rank} applied version {version} after version {has}")
        self._has[rank] = version
        self._publish()

    def rank_lost(self, rank: int) -> None:
        """Forget the inference rank `rank`, which has died: publication does not wait for it any more."""
        # None, as its successor begins without weights.
        self._has[rank] = None
        # Before `_publish`: a version that only the dead rank lacked is published by its death.
        self._lost_ranks.add(rank)
        self._publish()

    def rank_back(self, rank: int) -> None:
        """Wait for the inference rank `rank` again: its successor is about to apply its first weights."""
        self._lost_ranks.discard(rank)

    def _publish(self) -> None:
        versions = [version for rank, version in enumerate(self._has) if rank not in self._lost_ranks]
        versions_of_living = [version for version in versions if version is not None]
        # A living rank without weights holds up every version.
        if versions_of_living and len(versions_of_living) == len(versions):
            self.published = min(versions_of_living)

    def __str__(self) -> str:
        ranks = ", ".join(
            f"rank {rank} is lost" if rank in self._lost_ranks else f"rank {rank} has {version}"
            for rank, version in enumerate(self._has)
        )
        return f"version {self.offered} is offered, {ranks}"
