"""Any history of errors, of environments and of the policy, on every host: work goes on, or the run ends.

The clock is virtual: whoever would wait for ever is an error at once. `HYPOTHESIS_PROFILE=nightly` searches
further.
"""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import EnvironmentsFailed, PolicyFailure
from rlinf_async.loops.env import run_shard, together
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.foreign import blaming_the_policy, contained
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.request_broker import RankRequests, RequestBroker
from tests.conformance.environments import Steady
from tests.conformance.hosts import host_or_skip
from tests.hostile_errors import ALL_RAISED
from tests.loops.virtual import run
from tests.making import ticket

ROLLOUTS = 3
METHODS = ("__init__", "reset", "chunk_step", "update_reset_state_ids", "close")
EXAMPLES = 40 if settings().max_examples <= 100 else settings().max_examples

outcomes = st.lists(st.one_of(st.none(), st.none(), st.sampled_from(ALL_RAISED)), max_size=8)
"""What calls of a method come to, one after the other: None works, and so do all later ones."""


class History:
    """Says what each call comes to, and notes what was raised."""

    def __init__(self, scripts):
        self._scripts = {name: deque(script) for name, script in scripts.items()}
        self.raised = {name: [] for name in scripts}

    def call(self, name):
        if (script := self._scripts[name]) and (raised := script.popleft()) is not None:
            self.raised[name].append(raised.kind)
            raised.fail()

    def forget(self):
        """From now on everything works."""
        for script in self._scripts.values():
            script.clear()

    def environments(self):
        """A class whose first environments can be built."""
        history, built = self, []

        class Hostile(Steady):
            def __init__(self, *arguments, **keywords):
                if built:
                    history.call("__init__")
                built.append(self)
                super().__init__(*arguments, **keywords)

            def reset(self):
                history.call("reset")
                return super().reset()

            def chunk_step(self, actions):
                history.call("chunk_step")
                return super().chunk_step(actions)

            def update_reset_state_ids(self):
                history.call("update_reset_state_ids")
                super().update_reset_state_ids()

            def close(self):
                history.call("close")

        return Hostile


class Rollouts:
    """A gate, a buffer and a ledger: what is given up is collected again."""

    def __init__(self, count):
        self._waiting = deque(ticket(shard=1, batch=number) for number in range(count))
        self.admitted, self.put_down, self.given_up = 0, [], []

    async def admit(self, shard):
        if not self._waiting:
            return None
        self.admitted += 1
        return self._waiting.popleft()

    async def put(self, given, pieces):
        self.put_down.append(given)

    async def abandon(self, given, reason):
        self.given_up.append(reason)
        self._waiting.append(given)


class Policy:
    """Answers what the host's own answers are."""

    def __init__(self, playing, history):
        self._playing, self._history = playing, history

    async def act(self, batch):
        def forward():
            self._history.call("policy")
            return [self._playing.answer() for _ in batch]

        return contained(forward, blaming_the_policy("inference rank 0"))


class Recorder:
    def append(self, output, answer):
        """Nothing is kept."""

    def build(self, output, answer):
        class Whole:
            oldest = newest = 0

        return [Whole()]


async def collect(playing, history, rollouts, records, budget):
    broker = RequestBroker.dynamic(max_size=8, max_wait=0.0, deadline_s=60.0)
    restarts = ShardRestarts(
        1, SurviveConfig(env_restarts=budget), record=lambda **facts: records.append(facts), worked=True
    )

    async def asking():
        await together(
            [
                run_shard(
                    shard=1,
                    env=playing.shard,
                    policy=broker,
                    trajectories=rollouts,
                    recorder=lambda _: Recorder(),
                    restarts=restarts,
                )
            ]
        )
        broker.close()

    await together(
        [asking(), serve_policy(requests=RankRequests(broker, 0), policy=Policy(playing, history))]
    )


histories = given(
    scripts=st.fixed_dictionaries(dict.fromkeys((*METHODS, "policy"), outcomes)),
    budget=st.sampled_from((0, 1, 3, 100)),
)


@pytest.mark.parametrize("name", ["local", "workers"])
@settings(max_examples=EXAMPLES, derandomize=EXAMPLES == 40)
@histories
def test_a_run_goes_on_or_ends_with_one_error_that_says_who_and_why(name, scripts, budget):
    goes_on_or_ends(name, scripts, budget)


@settings(max_examples=EXAMPLES // 8, derandomize=EXAMPLES == 40)
@histories
def test_and_one_with_the_env_worker_of_rlinf_whose_making_takes_a_while(scripts, budget):
    goes_on_or_ends("rlinf", scripts, budget)


def goes_on_or_ends(name, scripts, budget):
    history, rollouts, records = History(scripts), Rollouts(ROLLOUTS), []
    with host_or_skip(name)(history.environments()) as playing:
        ended = None
        try:
            run(collect(playing, history, rollouts, records, budget))
        except Exception as error:  # noqa: BLE001 whatever it is, it is looked at below
            ended = error
        history.forget()
    raised = Counter(kind for method in METHODS if method != "close" for kind in history.raised[method])
    told = Counter(kind_of(record) for record in records)
    if (
        name == "rlinf"
    ):  # its worker makes an error of a SystemExit within a step, and names it in the message
        raised, told = (merged(kinds, "SystemExit", "RuntimeError") for kinds in (raised, told))
    assert told == raised
    assert all(record["shard"] == 1 for record in records)
    under_way = rollouts.admitted - len(rollouts.put_down) - len(rollouts.given_up)
    if ended is None:
        assert (len(rollouts.put_down), under_way) == (ROLLOUTS, 0)
        assert not history.raised["policy"]
    elif isinstance(ended, PolicyFailure):
        (kind,) = history.raised["policy"]
        assert str(ended).startswith(f"the policy has failed on inference rank 0: {kind}")
    else:
        assert type(ended) is EnvironmentsFailed
        assert str(ended).startswith("the environments of shard 1 have failed")
        assert raised.total() > budget
        assert under_way == 0


def merged(kinds, one, other):
    """`kinds`, of which `one` counts as `other`."""
    return Counter(other if kind == one else kind for kind in kinds.elements())


def kind_of(record):
    return record["error"].partition("\n")[0].partition(":")[0]
