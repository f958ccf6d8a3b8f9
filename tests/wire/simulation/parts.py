"""The processes of a run, with environments, policies and learners that check what they are given."""

import asyncio
import functools
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch

from rlinf_async.loops.env import run_shard
from rlinf_async.loops.together import together
from rlinf_async.observe.meters import BusyMeter, Spread
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.rollout_data import TrajectoryClient
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.publication.weights import WeightSender
from rlinf_async.wire.shown_memory import Reader
from tests.making import rollout
from tests.ray_runtime.publication.copies import Copy
from tests.wire.simulation.processes import PROCESS


class Alive:
    """What the driver asks of every process."""

    async def place(self):
        return PROCESS.get().node, PROCESS.get().number

    async def join_run(self, process, run_dir, *, clock=None, generation=0):
        self.generation = generation

    go_on_as = RunProcess.go_on_as


class Channel(Alive, RequestChannel):
    def __init__(self, run, settings):
        super().__init__(settings)
        self._run, self._take_now = run, self._broker.take_now
        self._broker.take_now = self._noted_take

    def _noted_take(self, *who, waited_s):
        batch = self._take_now(*who, waited_s=waited_s)
        self._run.out.helped += bool(batch and waited_s)
        return batch


class Pace(Alive, Coordinator):
    def __init__(self, run, settings):
        super().__init__(settings, run.first)
        self._run = run

    async def shards_lost(self, shards, generation):
        self._run.lost.update(ticket for ticket in self._broker._outstanding if ticket.shard in shards)
        lost = await super().shards_lost(shards, generation)
        self._run.out.abandoned += lost
        return lost


class EnvWorker(Alive):
    """Shards of which each observation is another, and each answer is to be of its observation."""

    generation = 0

    def __init__(self, run, rank):
        self._run, self._rank = run, rank

    async def rebuild(self):
        await self._run.nap("env", self._rank)

    async def run_shards(self, settings, requests, coordinator):
        policy = RequestClient(requests, generation=self.generation)
        trajectories = TrajectoryClient(coordinator, generation=self.generation)
        loops = (
            run_shard(
                shard=shard,
                env=Env(self._run, shard),
                policy=policy,
                trajectories=trajectories,
                recorder=lambda ticket: Recorder(self._run, ticket),
                overlaps=self._run.dynamic,
            )
            for shard in settings.plan.shards_of_worker(self._rank)
        )
        await together(loops)


@dataclass
class Env:
    run: object
    shard: int
    question: int = -1

    @property
    def size(self):
        return self.run.plan.envs_per_shard

    @property
    def horizon(self):
        return self.run.horizon

    async def start(self):
        await self.run.nap("env", self.shard)
        return self._next()

    async def step(self, answer):
        assert answer["answers"] == self.question, "an answer is that to another observation"
        self.run.out.answers += 1
        await self.run.nap("env", self.shard)
        return self._next()

    def _next(self):
        self.question = next(self.run.questions)
        return self.question

    def waiting(self, output):
        return self.size

    def observation(self, question):
        return {"question": question, "picture": torch.full((self.run.picture_bytes,), question % 251).byte()}

    async def finish(self):
        pass


@dataclass
class Recorder:
    run: object
    ticket: object
    versions: list = field(default_factory=list)

    def append(self, output, answer):
        self.versions.append(answer["version"])

    async def complete(self, output):
        """Nothing comes late."""

    def build(self, output, answer):
        versions, plan = self.versions, self.run.plan
        assert min(versions) >= self.ticket.version, "an action is older than what was published at its start"
        pieces = rollout(
            plan, self.ticket, decisions=self.run.horizon, oldest=min(versions), newest=max(versions)
        )
        size = self.run.picture_bytes // 4
        return [
            replace(piece, payload={"of": name_of(piece), "data": data_of(piece, size)}) for piece in pieces
        ]


def data_of(piece, size):
    """Numbers that no other piece has."""
    number = 0
    for part in name_of(piece):
        number = 16 * number + part
    return torch.arange(number, number + size)


def name_of(piece):
    return [piece.ticket.batch, piece.ticket.epoch, piece.ticket.place, piece.ticket.generation, piece.part]


class Thread:
    """Fills `loops.inference.PolicyThread`."""

    def __init__(self, run, rank):
        self._run, self._rank = run, rank

    async def call(self, function):
        await PROCESS.get().be_stuck("pass")
        await self._run.nap("act", self._rank)
        return function()


class InferenceRank(Alive, InferenceWorker):
    def __init__(self, run, rank):
        self._run, self._inference_rank = run, rank
        self._model_lock, self._version_held, self._busy = asyncio.Lock(), -1, BusyMeter()
        self._reader, self._policy_thread = Reader(), Thread(run, rank)
        self._passes, self._frozen = Spread(), None

    async def rebuild(self):
        await self._run.nap("load", self._inference_rank)

    async def load(self, *arguments):
        await PROCESS.get().be_stuck("within")
        return await super().load(*arguments)

    def answer(self, payloads, sizes, mode):
        for payload in payloads:
            filled = payload["question"] % 251
            assert bool((payload["picture"] == filled).all()), "an observation is of two"
            self._run.out.passes += 1
        return [{"answers": payload["question"], "version": self._version_held} for payload in payloads]

    def apply_weights(self, state_dict, version):
        assert version >= self._version_held, "weights go back"
        self._frozen = state_dict.get("frozen", self._frozen)
        assert self._frozen is not None, "the frozen weights have not come"
        assert bool((self._frozen == FROZEN).all()), "the frozen weights are others"
        for name in ("first", "second"):
            numbers = state_dict[name]
            made = numbers_of(version, len(numbers))
            assert torch.equal(numbers, made), f"weights of version {version} are {numbers} of {made}"
        self._frozen = self._frozen.clone()
        self._run.out.loads += 1


FROZEN = 7.0


@functools.cache
def numbers_of(version, count):
    """Trained weights: with every version some change, and each of them is known. Nobody writes to them."""
    numbers = torch.arange(count, dtype=torch.float32)
    return torch.where(numbers % 5 == version % 5, numbers + version, torch.full_like(numbers, version // 5))


class Model(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.register_buffer("frozen", torch.full((count,), FROZEN))
        self.register_buffer("first", torch.zeros(count))
        self.register_buffer("second", torch.zeros(count))

    def become(self, version):
        self.first[:] = numbers_of(version, len(self.first))
        self.second[:] = numbers_of(version, len(self.second))


class SendingThread:
    """Fills the thread of `WeightSender`: its work blocks nobody, and its calls are waited for behind it."""

    def __init__(self, *_, **__):
        self._run = CURRENT.run

    def submit(self, send, coordinator, *arguments):
        result, calls = Future(), []

        class Noted:
            def __getattr__(self, method):
                def remote(*values):
                    calls.append(getattr(coordinator, method).remote(*values))
                    ended = Future()
                    ended.set_result(None)
                    return type("Call", (), {"future": lambda _: ended})()

                return type("Method", (), {"remote": staticmethod(remote)})()

        async def work():
            try:
                await self._run.nap("load", 0)
                send(Noted(), *arguments)
                for call in calls:
                    await call
            except Exception as error:  # noqa: BLE001 it is raised by `sent`
                result.set_exception(error)
            else:
                result.set_result(None)

        asyncio.get_running_loop().create_task(work())
        return result


class CURRENT:
    """The schedule that runs."""

    run = None


class Learner(Alive, LearnerRank):
    def __init__(self, run, rank):
        self._run, self._rank = run, rank
        self.start_learning(rank=rank, initializer=lambda: None)
        self.model = Model(run.weights)
        self.model.become(run.first)

    def make_learner(self, settings, busy):
        return Trained(self._run, self._rank, self.model)

    def make_sender(self):
        sender = WeightSender(Copy(self.model, ["first", "second"], sends=self._rank == 0))
        sender.expect({name: torch.float32 for name in ("frozen", "first", "second")}, keeps=True)
        return sender

    async def compute(self, work, *arguments):
        await self._run.nap("train", self._rank)
        if work.__name__ == "finish":
            await self._run.step_together()  # gradients are summed over all ranks
        return work(*arguments)


@dataclass
class Trained:
    run: object
    rank: int
    model: Model

    def begin(self, batch):
        self.batch = batch

    def accept(self, pieces):
        out = self.run.out
        for piece in pieces:
            assert piece.payload["of"] == name_of(piece), "a piece has the data of another"
            assert torch.equal(piece.payload["data"], data_of(piece, self.run.picture_bytes // 4))
            assert piece.ticket not in self.run.lost, "a rollout counts that was lost with its env worker"
            assert (piece.rank, piece.ticket.batch) == (self.rank, self.batch)
            assert piece.oldest >= self.batch - self.run.bound, "an action is older than the bound"
            assert piece.newest <= self.batch, "an action was made by a policy that is not trained yet"
            out.trained[(self.batch, *piece.key, self.rank)] += 1
            out.staleness[self.batch - piece.oldest] += piece.size

    def finish(self):
        self.model.become(self.batch + 1)
        return {}
