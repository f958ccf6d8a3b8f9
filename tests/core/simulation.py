"""Shards, gate, buffer and learner ranks on a simulated clock: what a run would do, without a run."""

import heapq
import itertools
import random
from collections import Counter

from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.buffer import Ledger, TrajectoryBuffer
from tests.making import rollout


class Simulation:
    """Keeps its own books of every trajectory, and compares the ledger with them after every event.

    `refuses(ticket)` says whether a straggler ruins that rollout: its actions are then older than allowed.
    `step_time(rng, shard)` and `train_time(rng)` give service times.
    """

    def __init__(
        self,
        plan,
        *,
        max_staleness,
        until,
        version=0,
        seed=0,
        any_place=False,
        refuses,
        step_time,
        train_time,
    ):
        self.plan, self.max_staleness, self.until, self.first = plan, max_staleness, until, version
        self.rng = random.Random(seed)
        self.refuses, self.step_time, self.train_time = refuses, step_time, train_time
        self.gate = AdmissionGate(
            shards=plan.shards,
            epochs=plan.rollout_epochs,
            max_staleness=max_staleness,
            until=until,
            version=version,
            any_place=any_place,
        )
        self.buffer = TrajectoryBuffer(pieces_per_rank=plan.pieces_per_rank, max_staleness=max_staleness)
        self.buffer.restore(version, Ledger())
        self.clock = 0.0
        self.version = version
        self.started, self.trained, self.published_at = [], [], {version: 0.0}
        self.produced = self.refused = 0
        self._events, self._order = [], itertools.count()
        self._idle, self._being_trained, self._training = set(range(plan.shards)), [], False

    def run(self):
        """Until nothing can happen any more."""
        self._start_idle_shards()
        while self._events:
            self.clock, _, happen = heapq.heappop(self._events)
            happen()
            self._learn()
            self._start_idle_shards()
            self._compare_books()
        return self

    def seconds(self, since, to):
        """Simulated time between the publication of two versions."""
        return self.published_at[to] - self.published_at[since]

    def _after(self, delay, happen):
        heapq.heappush(self._events, (self.clock + delay, next(self._order), happen))

    def _start_idle_shards(self):
        for shard in sorted(self._idle):
            ticket = self.gate.admit(shard)
            if ticket is not None:
                self._idle.discard(shard)
                self.started.append(ticket)
                oldest = self.version
                self._after(self.step_time(self.rng, shard), lambda t=ticket, o=oldest: self._end(t, o))

    def _end(self, ticket, oldest):
        if self.refuses(ticket):
            oldest = ticket.batch - self.max_staleness - 1
        pieces = rollout(self.plan, ticket, oldest=oldest, newest=self.version)
        reasons = {self.buffer.put(piece) for piece in pieces}
        self.produced += sum(piece.size for piece in pieces)
        if reasons == {"stale"}:
            self.refused += sum(piece.size for piece in pieces)
            self.gate.refund(ticket)
        else:
            assert reasons == {None}
        self._idle.add(ticket.shard)

    def _learn(self):
        if self._training:
            return
        for rank in range(self.plan.learner_ranks):
            self._being_trained += self.buffer.take(self.version, rank)
        missing = [self.buffer.missing(self.version, rank) for rank in range(self.plan.learner_ranks)]
        if not any(missing):
            self._training = True
            self._after(self.train_time(self.rng), self._publish)

    def _publish(self):
        self.trained += [(self.version, piece) for piece in self._being_trained]
        self._being_trained, self._training = [], False
        self.buffer.finish(self.version)
        self.version += 1
        self.gate.publish(self.version)
        self.published_at[self.version] = self.clock

    def _compare_books(self):
        ledger = self.buffer.ledger
        trained = sum(piece.size for _, piece in self.trained)
        assert ledger.produced == self.produced
        assert ledger.trained == trained
        assert sum(ledger.refused.values()) == self.refused
        assert self.buffer.held() == self.produced - trained - self.refused
        ledger.check(self.buffer.held())

    def shares(self):
        """Per batch: how many trajectories of each shard were trained."""
        counted = Counter()
        for version, piece in self.trained:
            counted[version, piece.ticket.shard] += piece.size
        return counted
