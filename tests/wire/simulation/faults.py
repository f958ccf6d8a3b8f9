"""What befalls the processes and the network of a schedule, once a step was trained."""

import asyncio
import pickle
from functools import partial

from rlinf_async.wire.connection import LENGTH_FORMAT
from rlinf_async.wire.peers import Peer
from tests.wire.simulation.network import Socket
from tests.wire.simulation.processes import PROCESS

OUTLIVED = (
    *("death", "death", "part", "slow", "node", "power", "late", "late"),
    *("idle", "stranger", "stuck", "stuck"),
)
"""Faults that cost a run what they touch, and no more."""
FATAL = ("cut", "cut", "half open", "channel", "coordinator", "learner")
"""Faults that may end it: in one error, and with nothing trained twice."""
LAST_WORDS = (b"put", b"ask", b"settled", b"take", b"begin", b"abandon")
"""Of messages, which a process may send late and die."""
NEEDED = ("the request channel", "the coordinator")
"""Those without whom a process can do nothing: a way to them is not made again."""
ASKER = "the process that asked"
"""Is told answers only."""
PARTED_S = 25.0
"""Seconds without a link, at most, after which Ray does not yet take a node for lost."""


class Faults:
    def __init__(self, run):
        self._run, self._rng, self._cluster = run, run.rng, run.cluster
        kinds = FATAL if self._rng.random() < 0.15 else OUTLIVED
        self._kinds = [self._rng.choice(kinds) for _ in range(self._rng.choice((0, 1, 1, 2, 3)))]
        self.fatal = False
        """True once something has happened that may end the run."""
        self.unheard = False
        """True once something may be lost of which nobody is told: who waits for it has a deadline only."""
        self.half_opened = False
        """True once a connection is open on one side alone: what is sent through it is lost."""
        self._lost = False

    def begin(self):
        for kind in self._kinds:
            self._cluster.kernel.start(self._happen(kind))

    async def _happen(self, kind):
        await asyncio.sleep(self._rng.choice((0.01, 0.3, 10)) * self._rng.random())
        self.fatal |= kind in FATAL
        if await getattr(self, f"_{kind.replace(' ', '_')}")() is not False:
            self._run.out.faults[kind] += 1

    def _one_of(self, *groups):
        actors = [actor for group in groups for actor in self._run.groups[group] if actor._life is not None]
        return self._rng.choice(actors)._life if actors else None

    async def _death(self):
        process = self._one_of("env", "inference")
        if process is None:
            return False
        end = partial(self._cluster.end, process, abruptly=self._rng.random() < 0.3)
        if self._rng.random() < 0.6:
            process.at_its_end = end
            if process.name.startswith("env") and self._rng.random() < 0.5:
                process.last_word = self._rng.choice(LAST_WORDS)
            else:
                process.fuse = self._rng.randint(1, 30)
        else:
            end()

    async def _late(self):
        """A process dies, and what it has said last arrives when its death is known."""
        process = self._one_of("env", "inference")
        if process is None:
            return False
        process.late = True
        process.at_its_end = partial(self._cluster.end, process)
        if process.name.startswith("env"):
            process.last_word = self._rng.choice(LAST_WORDS)
        elif self._rng.random() < 0.3:
            process.fuse = self._rng.randint(1, 10)
        else:
            process.last_word = b"answers"
            # Whoever makes that answer again has not done so when it arrives.
            for rank in self._run.groups["inference"]:
                if rank._life not in (None, process):
                    rank._life.stuck = "pass", 20 * self._rng.random()

    async def _stuck(self):
        """A rank holds weights open for as long as several versions take, or hears late of them."""
        process = self._one_of("inference")
        if process is None:
            return False
        process.stuck = self._rng.choice(("before", "within")), 60 * self._rng.random()

    async def _idle(self):
        """A way is cut while nothing is under way there, and nobody waits for anything: it is made again."""
        ways = [
            end
            for process in self._cluster.processes
            for end in process.ends
            if end.idle and _is_made_again(end.owner)
        ]
        if not ways:
            return False
        self._rng.choice(ways).cut()

    async def _stranger(self):
        """Somebody without the token connects to whoever listens: says nothing, nonsense, or a message."""
        listening = self._rng.choice(list(self._run.network.listeners.values()))
        stranger = self._cluster.process("stranger", listening.process.node)
        frame = pickle.dumps((Opened(),), protocol=5)
        words = self._rng.choice((b"", bytes(64), LENGTH_FORMAT.pack(len(frame)) + frame, bytes(64) + frame))
        stranger.start(self._intrude(listening, words))

    async def _intrude(self, listening, words):
        sock = Socket(self._run.network, listening.family)
        try:
            await sock.connect(listening.name)
        except OSError:
            return
        await sock.end.attach(asyncio.Protocol())
        sock.end.write(words)

    async def _slow(self):
        process = self._one_of("env", "inference", "learner", "requests", "coordinator")
        before, process.slowness = process.slowness, 100.0
        await asyncio.sleep(30 * self._rng.random())
        process.slowness = before

    async def _part(self):
        """Two nodes do not hear each other for a while."""
        nodes = self._run.nodes
        if len(nodes) < 2:
            return False
        one, other = self._rng.sample(nodes, 2)
        self._run.network.part(one, other)
        await asyncio.sleep(self._rng.choice((1, PARTED_S)) * self._rng.random())
        self._run.network.join(one, other)

    def _dispensable_node(self):
        """A node that the run can do without, of which one at most is lost."""
        groups = self._run.groups
        # The channel of another node is lost with it.
        needed = groups["requests"][:1] + groups["coordinator"] + groups["learner"]
        used = {actor._node for actor in needed}
        nodes = [node for node in self._run.nodes if node not in used]
        if not nodes or self._lost:
            return None
        self._lost = True
        return self._rng.choice(nodes)

    async def _node(self):
        """A node is parted from all others, is given up, and comes back: what lives there lives on."""
        if (node := self._dispensable_node()) is None:
            return False
        others = [other for other in self._run.nodes if other != node]
        for other in others:
            self._run.network.part(node, other)
        await asyncio.sleep(30 * self._rng.random())
        lives = [process for process in self._cluster.processes if process.node == node]
        self._cluster.lose(node)
        await asyncio.sleep(self._rng.choice((1, 100)) * self._rng.random())
        for other in others:
            self._run.network.join(node, other)
        await asyncio.sleep(self._rng.choice((1, 100)) * self._rng.random())
        for process in lives:
            self._cluster.end(process)

    async def _power(self):
        """A node is off: nobody is told that its connections have ended."""
        if (node := self._dispensable_node()) is None:
            return False
        self._cluster.off.add(node)
        for process in self._cluster.processes:
            if process.node == node:
                self._run.network.vanish(process)
                self._cluster.end(process)
        await asyncio.sleep(30 * self._rng.random())
        self._cluster.lose(node)

    # -- what may end a run --

    def _stream(self):
        process = self._one_of("env", "inference", "learner", "requests", "coordinator")
        ends = list(process.ends) if process else ()
        return self._rng.choice(ends) if ends else None

    async def _cut(self):
        lonely = [
            end
            for actor in self._run.groups["env"]
            for end in (actor._life.ends if actor._life is not None else ())
            if end.idle and isinstance(end.owner, Peer) and not end.owner._waits
        ]
        end = self._rng.choice(lonely) if lonely and self._rng.random() < 0.7 else self._stream()
        if end is None:
            return False
        # Who has sent an answer does not hear that it has not arrived.
        self.unheard |= any(
            isinstance(one.owner, Peer) and one.owner._name == ASKER for one in (end, end.peer)
        )
        end.reset()

    async def _half_open(self):
        if (end := self._stream()) is None:
            return False
        self.unheard = self.half_opened = True
        end.vanish()

    async def _channel(self):
        self._cluster.end(self._one_of("requests"))

    async def _coordinator(self):
        self._cluster.end(self._one_of("coordinator"))

    async def _learner(self):
        self._cluster.end(self._one_of("learner"))


def _is_made_again(owner):
    """Say whether this is a way that is made again, and nobody waits for an answer."""
    return isinstance(owner, Peer) and owner._name not in NEEDED and not owner._waits


class Opened:
    """Is noticed where it is unpickled."""

    def __reduce__(self):
        return _noticed, ()


def _noticed():
    raise AssertionError(f"{PROCESS.get().name} has opened what a stranger has sent")
