"""The trajectory buffer, which guarantees the staleness bound, and the ledger of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rlinf_async.core.types import Piece

Refusal = Literal["stale", "duplicate", "closed"]


@dataclass
class Ledger:
    """Counts trajectories by their fate; `produced = trained + in flight + refused` at all times."""

    produced: int = 0
    trained: int = 0
    env_steps_trained: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def in_flight(self) -> int:
        """Collected, and neither trained nor refused yet."""
        return self.produced - self.trained - sum(self.refused.values())

    def check(self, held: int) -> None:
        """Compare the ledger with the number of trajectories that are really `held`.

        Raises:
            RuntimeError: a trajectory was lost or trained twice.
        """
        if self.in_flight != held:
            raise RuntimeError(f"{self} does not add up: {held} trajectories are held")

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.refused.items()))
        refused = f"{sum(self.refused.values())} refused" + (f" ({reasons})" if reasons else "")
        return f"produced {self.produced} = trained {self.trained} + in flight {self.in_flight} + {refused}"


class TrajectoryBuffer:
    """Holds complete pieces until the learner rank that trains them takes them, each exactly once.

    A piece is refused if its oldest action is more than `max_staleness` versions behind the version that
    would train it. The gate avoids such work; this class guarantees the bound.
    """

    def __init__(self, *, pieces_per_rank: int, max_staleness: int) -> None:
        self.pieces_per_rank = pieces_per_rank
        self.max_staleness = max_staleness
        self.ledger = Ledger()
        self._waiting: dict[tuple[int, int], dict[tuple[int, int, int], Piece]] = {}
        self._taken_pieces: dict[tuple[int, int], dict[tuple[int, int, int], Piece]] = {}
        self._batch = 0

    def refusal(self, piece: Piece) -> Refusal | None:
        """Why `piece` cannot be trained any more, or None."""
        place = (piece.ticket.batch, piece.rank)
        # Too late for every rank: the batch has been trained without the piece.
        if piece.ticket.batch < self._batch:
            return "closed"
        if piece.key in self._waiting.get(place, {}) or piece.key in self._taken_pieces.get(place, {}):
            return "duplicate"
        if piece.staleness > self.max_staleness:
            return "stale"
        return None

    def put(self, piece: Piece) -> Refusal | None:
        """Store a piece, or count it as refused and say why."""
        reason = self.refusal(piece)
        # Refused pieces count as produced too, or the ledger would not add up.
        self.ledger.produced += piece.size
        if reason is None:
            self._waiting.setdefault((piece.ticket.batch, piece.rank), {})[piece.key] = piece
        else:
            self.ledger.refused[reason] += piece.size
        return reason

    def waiting(self, batch: int, rank: int) -> int:
        """Pieces that `rank` could take for `batch` now."""
        return len(self._waiting.get((batch, rank), {}))

    def missing(self, batch: int, rank: int) -> int:
        """Pieces of `batch` that `rank` has not taken yet."""
        return self.pieces_per_rank - len(self._taken_pieces.get((batch, rank), {}))

    def complete(self, batch: int, ranks: int) -> bool:
        """Return True if every piece of `batch` has arrived, for each of `ranks` learner ranks, or has been
        trained.
        """
        return batch < self._batch or all(
            self.waiting(batch, rank) >= self.missing(batch, rank) for rank in range(ranks)
        )

    def take(self, batch: int, rank: int) -> list[Piece]:
        """Return the pieces that wait for `rank`, in arrival order; each piece is handed out once."""
        pieces = self._waiting.pop((batch, rank), {})
        # Kept until `finish`: a checkpoint saves the pieces that are being trained, and `refusal` knows a
        # second copy of them as a duplicate.
        self._taken_pieces.setdefault((batch, rank), {}).update(pieces)
        return list(pieces.values())

    def finish(self, batch: int) -> list[Piece]:
        """Every rank has trained `batch`: count its pieces as trained, and return them.

        Raises:
            RuntimeError: some of its pieces have not been taken.
        """
        places = [place for place in self._taken_pieces if place[0] == batch]
        untrained_count = sum(self.missing(*place) for place in places)
        # Pieces that no rank has begun to take have no entry in `_taken_pieces`.
        untrained_count += sum(len(waiting) for place, waiting in self._waiting.items() if place[0] == batch)
        if untrained_count:
            raise RuntimeError(
                f"batch {batch} was called trained while {untrained_count} of its pieces were not taken"
            )
        trained_pieces = [piece for place in places for piece in self._taken_pieces.pop(place).values()]
        for piece in trained_pieces:
            self.ledger.trained += piece.size
            self.ledger.env_steps_trained += piece.env_steps
        self._batch = max(self._batch, batch + 1)
        return trained_pieces

    def held(self) -> int:
        """Trajectories that wait or are being trained."""
        places = [*self._waiting.values(), *self._taken_pieces.values()]
        return sum(piece.size for place in places for piece in place.values())

    def untrained(self) -> list[Piece]:
        """All pieces that wait or are being trained, in the order of their batches, places and parts."""
        batches = [*self._waiting.values(), *self._taken_pieces.values()]
        pieces = [piece for place in batches for piece in place.values()]
        return sorted(pieces, key=lambda piece: (piece.ticket.batch, piece.key))

    def restore(self, batch: int, ledger: Ledger, pieces: Iterable[Piece] = ()) -> list[Piece]:
        """Start at `batch` with the ledger of the run that is resumed, and the pieces of its checkpoint.

        Pieces that are too old now, and all others that were in flight at the checkpoint, are counted as
        lost at resume.

        Returns:
            The pieces that wait to be taken again.
        """
        # First: `refusal` compares a piece with the batch at which the run begins.
        self._batch, self.ledger = batch, ledger
        accepted_pieces = [piece for piece in pieces if self.refusal(piece) is None]
        for piece in accepted_pieces:
            self._waiting.setdefault((piece.ticket.batch, piece.rank), {})[piece.key] = piece
        if missing := ledger.in_flight - self.held():
            # The difference counts every trajectory in flight that was not accepted, whatever the reason.
            ledger.refused["lost at resume"] += missing
        return accepted_pieces
