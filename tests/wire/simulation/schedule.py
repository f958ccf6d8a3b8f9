"""A run of processes over a network, drawn from a seed, and what has to be true of it."""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import SimpleNamespace
from unittest import mock

import ray

import rlinf_async.loops.env
from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import DeadlineError, PeerError
from rlinf_async.core.request_channels import channel_nodes
from rlinf_async.ray_runtime.driver import revivals
from rlinf_async.ray_runtime.driver.revivals import Revivals
from rlinf_async.ray_runtime.processes import run_process
from rlinf_async.ray_runtime.publication import weight_file, weight_mirror, weights
from rlinf_async.wire import connection, memory, nodes, payloads
from rlinf_async.wire.strangers import Strangers
from tests.making import drawn_plan, run_settings
from tests.wire.simulation import parts
from tests.wire.simulation.cluster import DIED, Actor, Cluster, FailedTask
from tests.wire.simulation.faults import Faults
from tests.wire.simulation.network import Network
from tests.wire.simulation.processes import PROCESS, ProcessLoop

DEATHS = (DIED, ray.exceptions.ActorUnschedulableError)
ENDINGS = (PeerError, DeadlineError, FailedTask, *DEATHS, ray.exceptions.ActorUnavailableError)
"""Errors by which a run may end whose wire is cut, or that loses what it cannot do without."""
LAST_WORDS_S = 60.0
"""After which what was said before the end of a run has arrived."""
DEADLINE_S = 3000.0
LONGEST_NAP_S = 500.0
"""One that is longer than the deadline would end a run that is right; several follow each other."""
LIMIT_S = 40_000.0
"""Of virtual time: a run that has not ended by then waits for ever."""


@dataclass
class Outcome:
    """What a run was, counted apart from the books that it keeps itself."""

    trained: Counter = field(default_factory=Counter)
    """(batch, epoch, place, part, rank): how often."""
    staleness: Counter = field(default_factory=Counter)
    answers: int = 0
    passes: int = 0
    loads: int = 0
    faults: Counter = field(default_factory=Counter)
    records: Counter = field(default_factory=Counter)
    """Deaths, as the run has recorded them."""
    may_end: bool = False
    """True if a part was lost without which no run goes on."""
    ended_by: str | None = None
    """The error of a run that has ended by one."""
    pieces: int = 0
    """The pieces that a whole run trains."""
    seconds: float = 0.0
    turns: int = 0
    """Of the event loop."""
    helped: int = 0
    """Batches that ranks have taken from the channel of another node."""
    abandoned: int = 0
    """Rollouts that were lost with their env worker."""

    def counts(self):
        return {
            **self.faults,
            "batches of another channel": self.helped,
            "ended by an error": self.ended_by is not None,
        }


class Schedule:
    """One run, drawn from `seed`."""

    def __init__(self, seed):
        self.seed, self.rng, self.out = seed, random.Random(seed), Outcome()
        draw = self.rng.choice
        self.bound, self.dynamic = draw((0, 1, 1, 2, 2)), self.rng.random() < 0.7
        self.streaming = self.rng.random() < 0.5
        self.plan = drawn_plan(
            draw,
            total_envs=(2, 4, 6),
            env_workers=(1, 2),
            inference_ranks=(1, 2, 3),
            learner_ranks=(1, 1, 2),
            shards_per_worker=(1, 2),
            rollout_epochs=(1, 1, 2),
        )
        self.first, self.horizon = draw((0, 0, 5)), draw((1, 2, 3))
        self.batches = draw((2, 3)) if self.bound < 2 else draw((3, 4))
        self.nodes = [f"node {number}" for number in range(draw((1, 1, 2, 3)))]
        self.hides = draw((0, 0, 0.3))
        self.delay_s = draw((0.001, 0.05, 1.0))
        self.inline_bytes, self.picture_bytes = draw((64, 10_000)), draw((8, 200))
        self._damages, self._damaged = draw((0, 0, 0.2)), set()
        self.weights, self.part_bytes = draw((4, 40)), draw((64, 2**24))
        # Apart from all else that is drawn: a seed without it is the schedule that it was before.
        apart = random.Random(f"loops of {seed}")
        most = min(self.plan.env_workers, self.plan.inference_ranks, len(self.nodes))
        self.loops = apart.sample(self.nodes, most) if self.dynamic and apart.random() < 0.75 else []
        """The nodes of all env workers and inference ranks, which have request channels of their own; [] if
        both are anywhere."""
        self.questions, self._stepping = count(), []
        self.lost = set()
        """Tickets of rollouts that were lost with their env workers."""
        self._scales = {
            kind: [draw((0, 0.1, 0.1, 0.4, 3)) for _ in range(32)] for kind in ("env", "act", "load", "train")
        }

    def __str__(self):
        shown = ("seed", "bound", "dynamic", "streaming", "first", "batches", "horizon", "nodes", "delay_s")
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown) + f", {self.plan}"

    async def nap(self, kind, who):
        """However long `who` takes for this today: now and then fifty times as long."""
        duration = self.rng.random() * self._scales[kind][who % 32] * PROCESS.get().slowness
        duration *= 50 if self.rng.random() < 0.02 else 1
        if duration:
            await asyncio.sleep(min(duration, LONGEST_NAP_S))

    async def step_together(self):
        """Wait for all learner ranks to come here."""
        self._stepping.append(asyncio.get_running_loop().create_future())
        mine = self._stepping[-1]
        if len(self._stepping) == self.plan.learner_ranks:
            waiting, self._stepping = self._stepping, []
            for one in waiting:
                if not one.done():  # its rank may have died
                    one.set_result(None)
        await mine

    def settings(self):
        asynchrony = AsyncConfig.from_mapping(
            {
                "train": {"enabled": self.bound > 0, "max_staleness": max(1, self.bound)},
                "rollout": {"enabled": self.dynamic},
                "streamer": {"enabled": self.streaming},
                "advanced": {"deadline_s": DEADLINE_S, "start_s": 600.0},
            }
        )
        return run_settings(
            asynchrony=asynchrony,
            plan=self.plan,
            horizon=self.horizon,
            batches=self.first + self.batches,
            global_batch_size=self.plan.trajectories_per_batch * self.horizon,
            micro_batch_size=1,
            max_batch_size=max(self.plan.envs_per_shard, self.rng.choice((1, self.plan.total_envs))),
        )

    def play(self):
        """Raises what goes wrong, with a command that replays it; the `Outcome`."""
        try:
            self.run()
            self.check()
        except BaseException as error:
            error.add_note(f"python -m tests.wire.simulation {self.seed}\n{self}")
            raise
        return self.out

    def run(self):
        with asyncio.Runner(loop_factory=ProcessLoop) as runner, contextlib.ExitStack() as stack:
            return runner.run(self._within(stack))

    async def _within(self, stack):
        self.network = Network(self.rng, delay_s=self.delay_s, out_of_room=self.rng.choice((0, 0, 0.2)))
        PROCESS.set(None)
        asyncio.get_running_loop().set_exception_handler(self._note)
        self.cluster = Cluster(self.rng, self.network, self.nodes, hides=self.hides)
        for patched in self._seams():
            stack.enter_context(patched)
        driver = self.cluster.process("driver", self.nodes[0])
        try:
            await asyncio.wait_for(driver.start(self._drive()), LIMIT_S)
        except ENDINGS as error:
            if not self.faults.fatal:
                raise
            if isinstance(error, DeadlineError) and not self.faults.unheard:
                raise  # somebody should have heard of it
            # As text: the traceback of an error keeps the memory of all processes, and its descriptors.
            self.out.ended_by = f"{type(error).__name__}: {error}"
        except TimeoutError:
            raise AssertionError(f"somebody waits for ever: {LIMIT_S:g} s are over") from None
        finally:
            loop = asyncio.get_running_loop()
            self.out.seconds, self.out.turns = loop.time(), loop.turns
            for process in self.cluster.processes:
                self.cluster.end(process)
            await asyncio.sleep(0)
            for process in self.cluster.processes:
                process.close_memory()
        return self.out

    def _note(self, _, context):
        """An error in a callback; that of a call whose caller has died is heard by nobody."""
        if "callback" in context["message"]:
            self.network.errors.append(context.get("exception"))

    def _seams(self):
        """The places where the product meets the system, Ray and the clock."""
        cluster, patch = self.cluster, mock.patch.object
        parts.CURRENT.run = self
        real = memory.os.memfd_create

        def memfd_create(name, flags):
            made = real(name, flags)
            PROCESS.get().files.append((made, memory.os.fstat(made).st_ino))
            return made

        yield patch(nodes, "ray", cluster)
        yield patch(connection, "socket", self.network)
        yield patch(connection, "STRANGERS", Strangers())
        for module in (memory, weight_file):
            yield patch(module, "machine", lambda: PROCESS.get().machine)
        yield patch(memory.os, "memfd_create", memfd_create)
        yield patch(payloads, "INLINE_BYTES", self.inline_bytes)
        yield patch(weight_mirror, "PART_BYTES", self.part_bytes)
        yield patch(weight_mirror, "packed_part", partial(self._packed_part, weight_mirror.packed_part))
        yield patch(weights, "ThreadPoolExecutor", parts.SendingThread)
        yield patch(rlinf_async.loops.env, "REQUEST_NUMBERS", count())
        yield patch(revivals, "ray", cluster)
        yield patch(revivals, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))
        yield patch(revivals, "machine", lambda: self.nodes[0])
        yield patch(
            revivals, "os", SimpleNamespace(kill=lambda number, _: cluster.end(cluster.by_number(number)))
        )
        yield patch(revivals, "RunDir", lambda _: SimpleNamespace(record=self.record))
        yield patch(run_process, "end_this_process", lambda: cluster.end(PROCESS.get()))

    def _packed_part(self, packed_part, place, before, index):
        """A part of weights, which comes damaged now and then, and once at most."""
        part, name = packed_part(place, before, index), (place, index)
        if self.rng.random() < self._damages and name not in self._damaged:
            self._damaged.add(name)
            at = self.rng.randrange(len(part.content))
            torn = bytearray(part.content)
            torn[at] ^= 1 << self.rng.randrange(8)
            return part._replace(content=bytes(torn))
        return part

    # -- the driver --

    async def _drive(self):
        settings, plan, draw = self.settings(), self.plan, self.rng.choice

        def on(rank):
            return self.loops[rank % len(self.loops)] if self.loops else None

        def actor(name, build, node=None):
            again = name.startswith(("env", "inference"))
            return Actor(self.cluster, name, node or draw(self.nodes), build, starts_again=again)

        requests = actor("requests", partial(parts.Channel, self, settings), self.nodes[0])
        coordinator = actor("coordinator", lambda: parts.Pace(self, settings), self.nodes[0])
        self.coordinator = coordinator._object
        self.groups = {
            "requests": [requests],
            "coordinator": [coordinator],
            "learner": [
                actor(f"learner-{rank}", lambda rank=rank: parts.Learner(self, rank))
                for rank in range(plan.learner_ranks)
            ],
            "inference": [
                actor(f"inference-{rank}", lambda rank=rank: parts.InferenceRank(self, rank), on(rank))
                for rank in range(plan.inference_ranks)
            ],
            "env": [
                actor(f"env-{rank}", lambda rank=rank: parts.EnvWorker(self, rank), on(rank))
                for rank in range(plan.env_workers)
            ],
        }
        groups = {group: [a._node for a in self.groups[group]] for group in ("env", "inference")}
        barrier = not settings.asynchrony.rollout.enabled
        nodes = channel_nodes(self.nodes[0], **groups, barrier=barrier) if self.loops else self.nodes[:1]
        self.groups["requests"] += [
            actor(f"requests-{number}", partial(parts.Channel, self, settings), node)
            for number, node in enumerate(nodes[1:], start=1)
        ]
        channels = dict(zip(nodes, self.groups["requests"], strict=True))
        self._died_at_the_end = False
        self._done = []
        """Processes whose loops have ended; they may die all the same, and nobody misses them."""
        self._watched, self._ending = [], False
        self.revivals = Revivals(
            self,
            settings,
            requests=channels,
            coordinator=coordinator,
            rebuild={"env": "rebuild", "inference": "rebuild"},
            elsewhere={
                "env": partial(self._elsewhere, "env", parts.EnvWorker),
                "inference": partial(self._elsewhere, "inference", parts.InferenceRank),
            },
            run_dir=None,
            say=lambda _: None,
        )
        self.faults = Faults(self)
        common = settings, channels, coordinator
        await self._calls(coordinator.introduce.remote(await self._all("learner", "piece_address")))
        if len(channels) > 1:
            self._keep("requests", "stay")
        serving = self._keep("inference", "serve", *common)
        await self._all("learner", "offer_weights", self.first, coordinator)
        await self._calls(coordinator.weights_published.remote(self.first))
        collecting = self._keep("env", "run_shards", *common)
        for batch in range(self.first, self.first + self.batches):
            await self._all("learner", "learn", batch, *common)
            if batch == self.first:
                self.revivals.working = True
                self.faults.begin()
        # As `driver.run.Publication.follow` does: a learner may die while it sends.
        sent = [asyncio.ensure_future(learner.weights_sent.remote()) for learner in self.groups["learner"]]
        self._watched += sent
        await self._calls(coordinator.weights_published.remote(self.first + self.batches))
        self._ending = True
        await self._calls(*collecting)
        for number, channel in enumerate(self.groups["requests"]):
            try:
                await self._calls(channel.close_requests.remote())
            except DEATHS:
                if not number:
                    raise
        await self._calls(coordinator.close_weights.remote())
        await self._calls(*serving)
        await asyncio.sleep(LAST_WORDS_S)
        # Through a connection that is open on one side alone, last words may never arrive.
        last_words_lost = self._died_at_the_end or any(life is None or life.dead for life in self._done)
        may_be_left = last_words_lost or self.faults.half_opened
        for channel in self.groups["requests"]:
            left = channel._object._broker._open_requests if channel._object else {}
            assert may_be_left or not left, f"{left} are in the book"

    def _keep(self, group, method, *arguments):
        """Begin the loops of a group, which are brought back when their processes die."""
        calls = [getattr(a, method).remote(*arguments) for a in self.groups[group]]
        kept = [asyncio.create_task(self._kept(group, rank, call)) for rank, call in enumerate(calls)]
        self._watched += kept
        return kept

    async def _kept(self, group, rank, call):
        while True:
            life = self.groups[group][rank]._life
            try:
                result = await call
                self._done.append(life)
                return result
            except DEATHS as died:
                if self._ending:
                    self._died_at_the_end = True
                    return None
                begin = (
                    self.revivals.without_channel
                    if group == "requests"
                    else partial(self.revivals.begin, group)
                )
                call = await self._drive_revival(begin(rank, died))
                if call is None:
                    return None

    async def _drive_revival(self, revival):
        error = None
        while True:
            try:
                wait = revival.throw(error) if error else next(revival)
            except StopIteration as came:
                return came.value
            if not wait.calls:
                error = await asyncio.sleep(wait.seconds)
                continue
            done, pending = await asyncio.wait(wait.calls, timeout=wait.seconds)
            errors = [call.exception() for call in wait.calls if call in done and call.exception()]
            error = TimeoutError("it does not answer") if pending else next(iter(errors), None)

    def _elsewhere(self, group, build, rank):
        nodes = [node for node, alive in self.cluster.alive.items() if alive]
        node = self.rng.choice(nodes)
        return Actor(self.cluster, f"{group}-{rank}", node, lambda: build(self, rank)), node

    def actors(self, group):
        return self.groups[group]

    def replace(self, group, rank, actor):
        self.groups[group][rank] = actor

    def record(self, fault):
        self.out.records[fault.what] += 1

    async def _all(self, group, method, *arguments):
        return await self._calls(*(getattr(a, method).remote(*arguments) for a in self.groups[group]))

    async def _calls(self, *calls):
        """The results of calls, as `driver.fleet` waits for them: the first failure of any, or of a loop that
        goes on, ends the wait, and so does the deadline.
        """
        give_up = asyncio.get_running_loop().time() + DEADLINE_S
        while any(not call.done() for call in calls):
            left = give_up - asyncio.get_running_loop().time()
            waited = [call for call in (*calls, *self._watched) if not call.done()]
            done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise DeadlineError("the driver has waited for too long")
            for call in waited:
                if call.done():
                    call.result()
        return [call.result() for call in calls]

    def check(self):
        """Raises AssertionError where the books are not what was counted apart from them."""
        out, plan, ledger = self.out, self.plan, self.coordinator._broker.ledger
        trained = plan.trajectories_per_batch * self.batches
        out.may_end, out.pieces = self.faults.fatal, self.batches * plan.pieces_per_rank * plan.learner_ranks
        assert set(out.trained.values()) <= {1}
        assert not self.network.errors, self.network.errors
        ledger.check(self.coordinator._broker.buffer.held())
        if out.ended_by is not None:
            return
        assert len(out.trained) == out.pieces
        assert max(out.staleness) <= self.bound
        assert ledger.trained == trained
        assert ledger.refused["env worker died"] == out.abandoned * plan.envs_per_shard
        assert ledger.produced == trained + sum(ledger.refused.values()), ledger
        assert ledger.in_flight == self.coordinator._broker.buffer.held() == 0, ledger
