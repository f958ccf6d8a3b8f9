"""What befalls the processes and the network of a schedule, once a step was trained."""

import asyncio
from functools import partial

OUTLIVED = ("death", "death", "part", "slow", "node", "power")
"""Faults that cost a run what they touch, and no more."""
FATAL = ("cut", "half open", "channel", "coordinator", "learner")
"""Faults that may end it: in one error, and with nothing trained twice."""
PARTED_S = 25.0
"""Seconds without a link, at most, after which Ray does not yet take a node for lost."""


class Faults:
    def __init__(self, run):
        self._run, self._rng, self._cluster = run, run.rng, run.cluster
        kinds = FATAL if self._rng.random() < 0.15 else OUTLIVED
        self._kinds = [self._rng.choice(kinds) for _ in range(self._rng.choice((0, 1, 1, 2, 3)))]
        self.fatal = False
        """True once something has happened that may end the run."""
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
            process.fuse, process.at_its_end = self._rng.randint(1, 30), end
        else:
            end()

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
        used = {a._node for group in ("requests", "coordinator", "learner") for a in self._run.groups[group]}
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
        if (end := self._stream()) is None:
            return False
        end.reset()

    async def _half_open(self):
        if (end := self._stream()) is None:
            return False
        end.vanish()

    async def _channel(self):
        self._cluster.end(self._one_of("requests"))

    async def _coordinator(self):
        self._cluster.end(self._one_of("coordinator"))

    async def _learner(self):
        self._cluster.end(self._one_of("learner"))
