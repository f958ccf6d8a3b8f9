"""Environments that do anything at any call: raise, give, hang or die. Work goes on, or the run ends.

At each call of environments Hypothesis says what it comes to. The env loop, the request broker, the buffer
with its ledger and the host's shard are real; the clock is virtual, so that a hang costs nothing, and whoever
would wait for ever is an error at once. `make nightly` searches further.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import EnvironmentsFailed, PolicyFailure, SimulatorDied, StuckThread
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.lab.virtual.clock import VirtualLoop
from rlinf_async.loops import env_restarts
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.foreign import blaming_the_policy, contained
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RankRequests, RequestBroker
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.observe.faults import Fault
from tests.conformance.environments import Steady
from tests.conformance.hostile_values import alterations
from tests.conformance.hosts import ENVS, host_or_skip
from tests.hostile_errors import ALL_RAISED
from tests.making import plan, rollout

BATCHES, STEP_S = 3, 1.0
PLAN = plan(total_envs=ENVS, env_workers=1, shards_per_worker=1)


class Loop(VirtualLoop):
    """Whoever is called in a thread of a shard waits until it is said what that comes to."""

    def __init__(self) -> None:
        super().__init__()
        self.called: asyncio.Future[None] | None = None
        """A call that nobody has said anything about."""
        self.calls, self.closing = 0, False

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        async def work() -> Any:
            if executor is not None:
                self.calls, self.closing = self.calls + 1, getattr(args[0], "__name__", "") == "close"
                waiting = self.called = self.create_future()
                await waiting
            return func(*args)

        return self.create_task(work())


class Hostile(Steady):
    """Does what it is told, once."""

    machine: Any = None

    def __init__(self, *given: Any, **named: Any) -> None:
        self.machine.act("build")
        super().__init__(*given, **named)

    def reset(self) -> Any:
        return self.machine.given("reset", super().reset())

    def chunk_step(self, actions: Any) -> Any:
        return self.machine.given("step", super().chunk_step(actions))

    def update_reset_state_ids(self) -> None:
        self.machine.act("finish")

    def close(self) -> None:
        self.machine.act("close")


class Ends(Hostile):
    """Its processes can be ended when they hang."""

    def abort(self, reason: str) -> bool:
        return bool(self.machine.abort())


class Policy:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def act(self, batch: Any) -> Any:
        def forward() -> Any:
            self._machine.act("policy")
            return [self._machine.playing.answer() for _ in batch]

        return contained(forward, blaming_the_policy("inference rank 0"))


class Recorder:
    def __init__(self, ticket: Any) -> None:
        self._ticket = ticket

    def append(self, output: Any, answer: Any) -> None:
        """Nothing is kept."""

    async def complete(self, output: Any) -> None:
        """Nothing comes late."""

    def build(self, output: Any, answer: Any) -> Any:
        return rollout(PLAN, self._ticket)


class Machine(RuleBasedStateMachine):
    """A run of one shard of the host `name`."""

    name = "local"

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.next: Any = None
        self.policy_fails: Any = None
        self.raised: Counter[str] = Counter()
        self.hung, self.failed_policy, self.altered = 0, 0, 0
        self.ever_hung = False
        self.first_of: dict[str, bool] = {}
        """Whether the first value of each method was altered: it is what later values are compared with."""
        self.records: list[Fault] = []
        self.task: Any = None

    @initialize(budget=st.sampled_from((0, 1, 3, 100)), ends=st.booleans(), worked=st.booleans())
    def begin(self, budget: int, ends: bool, worked: bool) -> None:
        patient = partial(RestartBudget, first_wait_s=0.0)
        self.stack.enter_context(mock.patch.object(env_restarts, "RestartBudget", patient))
        env_cls = type("Hostile", (Ends if ends else Hostile,), {"machine": self})
        limits = dict.fromkeys(("start_s", "reset_s", "step_s"), STEP_S)
        self.playing = self.stack.enter_context(host_or_skip(self.name)(env_cls, **limits))
        self.budget = budget
        self.loop = Loop()
        self.requests = RequestBroker(SharedQueues(max_size=8, max_wait=0.0, deadline_s=60.0))
        self.broker = TrajectoryBroker(PLAN, max_staleness=1, until=BATCHES, deadline_s=60.0)
        self.restarts = ShardRestarts(
            1,
            SurviveConfig(env_restarts=budget),
            record=self.records.append,
            worked=worked,
        )
        self.task = self.loop.create_task(self.run())
        self.pump()

    async def run(self) -> None:
        async def learn() -> None:
            for batch in range(BATCHES):
                await self.broker.take(0, batch, whole=True)
                self.broker.publish(batch + 1)

        async def ask() -> None:
            shard = run_shard(
                shard=0,
                env=self.playing.shard,
                policy=self.requests,
                trajectories=self.broker,
                recorder=Recorder,
                restarts=self.restarts,
            )
            await together([shard, learn()])
            self.requests.close()

        answering = serve_policy(requests=RankRequests(self.requests, 0), policy=Policy(self))
        await together([ask(), answering])

    def pump(self) -> None:
        """Go on until environments are called, or the run ends."""

        async def call() -> None:
            while not self.task.done() and (self.loop.called is None or self.loop.called.done()):  # noqa: ASYNC110
                await asyncio.sleep(0)

        self.loop.run_until_complete(call())
        assert self.task.done() or self.loop.called is not None

    def answered(self) -> None:
        """Let the call come to what has been said."""
        self.loop.called.set_result(None)
        self.pump()

    def act(self, method: str) -> None:
        if method == "policy":
            act, self.policy_fails = self.policy_fails, None
            self.failed_policy += act is not None
        else:
            act, self.next = self.next, None
        if act is None or not hasattr(act, "fail"):
            return
        if method not in ("policy", "close"):
            self.raised[act.kind] += 1
        act.fail()

    def given(self, method: str, right: Any) -> Any:
        act, self.next = self.next, None
        if act is not None and hasattr(act, "fail"):
            self.raised[act.kind] += 1
            act.fail()
        self.first_of.setdefault(method, act is not None)
        if act is None:
            return right
        self.altered += 1
        return act(right)

    def abort(self) -> bool:
        """The process of what hangs is ended, so that the call raises."""
        self.next = None
        self.loop.called.set_exception(SimulatorDied("it was ended"))
        return True

    def runs(self) -> bool:
        return self.task is not None and not self.task.done()

    @precondition(runs)
    @rule(times=st.integers(1, 8))
    def works(self, times: int) -> None:
        for _ in range(times):
            if self.runs():
                self.answered()

    @precondition(runs)
    @rule(raised=st.sampled_from(ALL_RAISED))
    def raises(self, raised: Any) -> None:
        self.next = raised
        self.answered()

    @precondition(runs)
    @rule(alter=alterations())
    def gives(self, alter: Any) -> None:
        self.next = alter
        self.answered()

    @precondition(runs)
    @rule()
    def hangs(self) -> None:
        """Within two limits there is a word of it."""
        before, call = self.loop.time(), self.loop.calls
        self.ever_hung = True
        self.hung += not self.loop.closing  # of what has failed anyhow it is not told

        async def passes() -> None:
            while not self.task.done() and self.loop.calls == call:  # noqa: ASYNC110
                await asyncio.sleep(0.25)

        self.loop.run_until_complete(passes())
        assert self.loop.time() - before <= 2 * STEP_S

    @precondition(runs)
    @rule(raised=st.sampled_from(ALL_RAISED))
    def the_policy_will_raise(self, raised: Any) -> None:
        self.policy_fails = raised

    @precondition(lambda self: not self.runs())
    @rule()
    def is_over(self) -> None:
        """Nothing is called any more."""

    def teardown(self) -> None:
        try:
            if self.task is not None:
                self.next = self.policy_fails = None
                while self.runs():
                    self.answered()
                self.check()
        finally:
            Hostile.machine = None
            if self.task is not None:
                for task in asyncio.all_tasks(self.loop):
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0))
                self.loop.close()
            self.next = None
            self.stack.close()

    def check(self) -> None:
        """The run has gone on, or has ended with one sentence; every fault is told; the ledger closes."""
        ended = self.task.exception()
        ledger = self.broker.ledger
        assert ledger.produced == ledger.trained + ledger.in_flight + ledger.refused.total()
        assert all(record.shard == 1 for record in self.records)
        told = Counter(record.error.partition("\n")[0].partition(":")[0] for record in self.records)
        if self.name != "rlinf":  # its worker says what is raised within a step in words of its own
            assert not self.raised - told
        if ended is None:
            assert (ledger.trained, ledger.in_flight) == (BATCHES * PLAN.trajectories_per_batch, 0)
            assert len(self.records) >= self.raised.total() + self.hung
        elif isinstance(ended, PolicyFailure):
            assert self.failed_policy == 1
            assert str(ended).startswith("the policy has failed on inference rank 0: ")
        elif isinstance(ended, StuckThread):
            assert self.ever_hung
            assert str(ended).startswith(
                "the environments of shard 1 have not answered for 1 s (async.advanced."
            )
        else:
            assert type(ended) is EnvironmentsFailed, ended
            assert str(ended).startswith("the environments of shard 1 have failed")
            faults = self.raised.total() + self.hung + self.altered
            assert faults > min(self.budget, 1) or any(self.first_of.values())


EXAMPLES = {"local": 50, "workers": 50, "rlinf": 8}
MANY = [
    pytest.param(name, 20 * count, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])
    for name, count in EXAMPLES.items()
]


@pytest.mark.parametrize(("name", "examples"), [*EXAMPLES.items(), *MANY])
def test_a_run_goes_on_or_ends_with_one_sentence_whatever_its_environments_do(name, examples):
    host_or_skip(name)
    machine = type("Machine", (Machine,), {"name": name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            derandomize=examples == EXAMPLES[name],
            deadline=None,
        ),
    )
