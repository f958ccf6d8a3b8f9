"""What of Ray the processes of a run see: nodes, handles, calls in no order, deaths and restarts."""

import asyncio
from types import SimpleNamespace

import ray

from tests.wire.simulation.processes import PROCESS, Process

DIED = ray.exceptions.RayActorError
NOTICE_S = 3.0
"""Until a death is known, at most."""
RESTART_S = 5.0
"""Until a process that has died is started again, at most."""


class FailedTask(RuntimeError):
    """A process has raised what a call of its own to a dead process has raised."""


class Cluster:
    """Fills the module `ray` for processes."""

    exceptions = ray.exceptions

    def __init__(self, rng, network, nodes, *, hides):
        self._rng, self.network, self._hides = rng, network, hides
        self.alive = dict.fromkeys(nodes, True)
        self.off = set()
        """Nodes without power, where nothing starts; Ray takes them for lost later."""
        self._addresses = {node: f"10.0.0.{number}" for number, node in enumerate(nodes)}
        self.util = SimpleNamespace(get_node_ip_address=lambda: self._addresses[PROCESS.get().node])
        self.processes = []
        self.actors = []
        self.kernel = self.process("kernel", nodes[0])
        """On whose behalf what is under way goes on, whoever has died."""

    def process(self, name, node, slowness=1.0):
        number = len(self.processes)
        machine = f"{node}/{number}" if self._hides and self._rng.random() < self._hides else node
        made = Process(name, node, machine, number, slowness)
        self.processes.append(made)
        return made

    def by_number(self, number):
        return self.processes[number]

    # -- as the module --

    def is_initialized(self):
        return True

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: PROCESS.get().node)

    def nodes(self):
        return [
            {"NodeID": node, "Alive": alive, "NodeManagerAddress": self._addresses[node]}
            for node, alive in self.alive.items()
        ]

    def get(self, call):
        return [one.result() for one in call] if isinstance(call, list) else call.result()

    def kill(self, actor, *, no_restart=True):
        if actor._life is not None:
            self.end(actor._life)

    # -- faults --

    def end(self, process, *, abruptly=False):
        """A process dies: it says nothing any more, and what it has sent is on its way."""
        if process.dead:
            return
        process.dead = True
        self.network.end_of(process, abruptly=abruptly)
        process.give_memory_back()
        process.cancel_tasks()
        for actor in self.actors:
            if actor._life is process:
                actor._dies()

    def lose(self, node):
        """Ray takes a node for lost. What lives there lives on."""
        self.alive[node] = False
        for actor in self.actors:
            if actor._node == node:
                actor._is_lost()


class Actor:
    """Ray's handle of a process, which may be started again behind it when it dies."""

    def __init__(self, cluster, name, node, build, *, slowness=1.0, starts_again=True):
        self._cluster, self._name, self._node, self._build = cluster, name, node, build
        self._slowness, self._starts_again = slowness, starts_again
        self._life = self._object = None
        self._death = None
        cluster.actors.append(self)
        self._begin()

    def __getattr__(self, method):
        if method.startswith("_"):
            raise AttributeError(method)
        return SimpleNamespace(remote=lambda *arguments, **named: self._call(method, arguments, named))

    def _begin(self):
        self._life = self._cluster.process(self._name, self._node, self._slowness)
        self._death = asyncio.get_running_loop().create_future()
        self._object = self._life.run(self._build)

    def _dies(self):
        self._life = self._object = None
        self._death.set_result(None)
        if self._starts_again and self._cluster.alive[self._node]:
            wait = self._cluster._rng.random() * RESTART_S
            self._cluster.kernel.start(self._start_again(wait))

    def _is_lost(self):
        if self._life is not None:
            self._life = self._object = None
            self._death.set_result(None)

    async def _start_again(self, wait):
        await asyncio.sleep(wait)
        if self._cluster.alive[self._node] and self._node not in self._cluster.off:
            self._begin()

    def _call(self, method, arguments, named):
        caller, call = PROCESS.get(), asyncio.get_running_loop().create_future()
        if caller.dead:
            call.cancel()
        else:
            self._cluster.kernel.start(self._deliver(call, caller, method, arguments, named))
        return call

    async def _deliver(self, call, caller, method, arguments, named):
        try:
            result, error = await self._answer(caller, method, arguments, named), None
        except Exception as raised:  # noqa: BLE001 it is the caller's
            result, error = None, raised
        if not call.done() and not caller.dead:
            if error is None:
                call.set_result(result)
            else:
                call.set_exception(error)

    async def _answer(self, caller, method, arguments, named):
        cluster, network = self._cluster, self._cluster.network
        await self._reach(caller)
        life, death = self._life, self._death
        await asyncio.sleep(network.delay(caller, life or caller))
        if life is None or self._life is not life:
            await asyncio.sleep(cluster._rng.random() * NOTICE_S)
            if not self._starts_again:
                raise DIED(error_msg=f"{self._name} has died")
            if not cluster.alive[self._node]:
                raise ray.exceptions.ActorUnschedulableError(f"{self._node} is lost")
            raise ray.exceptions.ActorUnavailableError(f"{self._name} is being started", None)
        task = life.start(getattr(self._object, method)(*arguments, **named))
        await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or task.cancelled():
            await asyncio.sleep(cluster._rng.random() * NOTICE_S)
            raise DIED(error_msg=f"{self._name} has died")
        await self._reach(caller)
        await asyncio.sleep(network.delay(life, caller))
        if method == "next_weights":
            await caller.be_stuck("before")
        if isinstance(error := task.exception(), DIED):
            raise FailedTask(f"{self._name}: {error}") from error
        if error is not None:
            raise error
        return task.result()

    async def _reach(self, caller):
        """Until a call passes to the node, or that is lost."""
        cluster = self._cluster
        while cluster.alive[self._node] and not cluster.network.passes(caller.node, self._node):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
