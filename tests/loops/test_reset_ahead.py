"""Two sets of environments that play by turns, one of which resets while the other plays."""

import asyncio
import random
from contextlib import asynccontextmanager, contextmanager

import pytest

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure, StuckThread
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.reset_ahead import ResetAhead
from rlinf_async.observe.spans import SpanLog, read_spans
from tests.loops.virtual import run
from tests.making import piece, ticket

RESET_S, STEP_S = 8.0, 0.5


class Episodes:
    """Environments whose episodes are numbered; those that are built anew begin with number 1000."""

    size, horizon = 3, 4

    def __init__(self, reset_s=RESET_S, fails=()):
        self._reset_s, self._fails, self._next, self._left_out = reset_s, set(fails), 0, 0
        self.restarts, self.cancelled, self._resetting = 0, 0, False

    async def start(self):
        return await self.reset()

    async def reset(self):
        episode, self._next, self._left_out = self._next + self._left_out, self._next + self._left_out + 1, 0
        self._resetting = True
        try:
            await asyncio.sleep(self._reset_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self._resetting = False
        self._break("reset", episode)
        self._episode = episode
        return f"{episode}.0"

    async def step(self, answer):
        await asyncio.sleep(STEP_S)
        self._break("step", self._episode)
        return f"{self._episode}.{answer}"

    def observation(self, output):
        return output

    def skip(self):
        self._left_out += 1

    async def finish(self):
        self._break("finish", self._episode)

    async def restart(self):
        assert not self._resetting, "built anew in the middle of a reset"
        self.restarts, self._next = self.restarts + 1, 1000

    def _break(self, *where):
        if where in self._fails:
            self._fails.remove(where)
            raise ShardFailure(f"broken in {where}")


class Run:
    """A gate with so many tickets, a policy that answers at once, and the outputs of every rollout."""

    def __init__(self, rollouts, not_finite=(), gate_s=0.0):
        self._gate_s = gate_s
        self._tickets = [ticket(batch=number) for number in range(rollouts)]
        self._not_finite, self.kept, self.abandoned = set(not_finite), [], []

    async def admit(self, shard):
        await asyncio.sleep(self._gate_s)
        return self._tickets.pop(0) if self._tickets else None

    async def put(self, given, pieces):
        self.kept.append(self._outputs)

    async def abandon(self, given, reason):
        self.abandoned.append(self._outputs)
        self._tickets.insert(0, given)

    @asynccontextmanager
    async def rollout(self, shard):
        yield

    async def act(self, request):
        return int(request.payload.split(".")[1]) + 1

    def recorder(self, given):
        self._given, self._outputs = given, []
        return self

    def append(self, output, answer):
        self._outputs.append(output)

    def build(self, output, answer):
        self._outputs.append(output)
        if output in self._not_finite:
            self._not_finite.remove(output)
            raise ShardFailure("no number", what="not finite")
        return [piece(self._given)]


def loop_of(env, story):
    return run_shard(
        shard=0,
        env=env,
        policy=story,
        trajectories=story,
        recorder=story.recorder,
        restarts=ShardRestarts(0, SurviveConfig(env_restarts=10), worked=True),
    )


def by_turns(first, spare, rollouts, *, not_finite=(), gate_s=0.0, **options):
    """What was seen in so many rollouts of two sets of environments, and the seconds that they took."""
    story = Run(rollouts, not_finite, gate_s)

    async def main():
        env = ResetAhead(first, spare, shard=0, **options)
        await env.closed_after(loop_of(env, story))
        return asyncio.get_running_loop().time(), len(asyncio.all_tasks())

    seconds, tasks = run(main())
    assert tasks == 1, "a task is left behind"
    return story, seconds


def alone(env, rollouts):
    story = Run(rollouts)

    async def main():
        await loop_of(env, story)
        return asyncio.get_running_loop().time()

    return story, run(main())


def episodes(rollouts):
    return [outputs[0] for outputs in rollouts]


@pytest.mark.parametrize("seed", range(20))
def test_rollouts_are_those_without_a_spare_in_their_order(seed):
    rng = random.Random(seed)
    rollouts, seconds = rng.randrange(1, 8), [rng.choice((0.0, 0.5, 2.0, 30.0)) for _ in range(2)]
    story, _ = by_turns(Episodes(seconds[0]), Episodes(seconds[1]), rollouts)
    assert story.kept == alone(Episodes(), rollouts)[0].kept
    assert len(story.kept) == rollouts


@pytest.mark.parametrize(("reset_s", "waits"), [(1.5, 0.0), (2.0, 0.0), (8.0, 6.0)])
def test_only_the_first_reset_takes_the_shards_time_and_what_is_left_of_a_long_one(reset_s, waits):
    play = Episodes.horizon * STEP_S
    _, seconds = by_turns(Episodes(reset_s), Episodes(reset_s), 2)
    assert seconds == reset_s + 2 * play
    # From the second on, each rollout waits for the reset that began when the one before the last had ended.
    _, longer = by_turns(Episodes(reset_s), Episodes(reset_s), 3)
    assert longer == seconds + waits + play
    assert alone(Episodes(reset_s), 3)[1] == 3 * (reset_s + play)


def test_a_reset_goes_on_while_the_shard_waits_at_the_gate():
    _, seconds = by_turns(Episodes(), Episodes(), 3, gate_s=4.0)
    play_s = Episodes.horizon * STEP_S
    assert seconds == 4.0 + RESET_S + play_s + 2 * (4.0 + play_s) + 4.0


def test_only_the_wait_for_a_reset_counts_as_work_of_the_shard():
    loop, waits = asyncio.get_running_loop, []

    @contextmanager
    def waiting():
        began = loop().time()
        yield
        waits.append(loop().time() - began)

    by_turns(Episodes(), Episodes(), 4, waiting=waiting)
    assert waits == [8.0, 0.0, 6.0, 0.0]


def test_every_reset_leaves_a_span_of_its_own(tmp_path):
    spans = SpanLog(tmp_path, now=lambda: asyncio.get_running_loop().time())
    by_turns(Episodes(), Episodes(), 2, spans=spans)
    found = [span for span in read_spans(tmp_path) if "error" not in span]
    assert [(one["kind"], one["shard"], one["ended"] - one["began"]) for one in found] == [
        ("reset ahead", 0, 8.0)
    ] * 2


def test_a_failing_reset_ahead_costs_the_rollout_that_wants_it_and_no_other():
    first, spare = Episodes(), Episodes(fails=[("reset", 1)])
    story, _ = by_turns(first, spare, 4)
    assert (first.restarts, spare.restarts) == (0, 1)
    assert story.abandoned == [[]]
    assert episodes(story.kept) == ["0.0", "1000.0", "2.0", "1002.0"]


@pytest.mark.parametrize("where", ["step", "finish"])
def test_what_fails_while_it_plays_is_built_anew_and_goes_on(where):
    first, spare = Episodes(fails=[(where, 2)]), Episodes()
    story, _ = by_turns(first, spare, 5)
    assert (first.restarts, spare.restarts) == (1, 0)
    assert episodes(story.abandoned) == ["2.0"]
    assert episodes(story.kept) == ["0.0", "1.0", "1000.0", "3.0", "1002.0"]


@pytest.mark.parametrize("fails", [(), [("reset", 2)]])
def test_numbers_that_are_not_finite_are_those_of_the_environments_that_have_just_played(fails):
    """Even if the reset fails, too, that has begun since."""
    first, spare = Episodes(fails=fails), Episodes()
    story, _ = by_turns(first, spare, 3, not_finite=["0.4"])
    assert (first.restarts, spare.restarts) == (1, 0)
    assert episodes(story.abandoned) == ["0.0"]
    # What they reset to before they were built anew is gone.
    assert episodes(story.kept) == ["1.0", "1000.0", "3.0"]


def test_a_run_that_ends_waits_for_no_reset():
    first, spare = Episodes(), Episodes()
    _, seconds = by_turns(first, spare, 2)
    assert seconds == 12.0  # the first set would be ready at 18
    assert (first.cancelled, spare.cancelled) == (1, 1)


def test_a_run_that_is_cancelled_leaves_no_reset_behind():
    first, spare = Episodes(), Episodes()

    async def main():
        env = ResetAhead(first, spare, shard=0)
        running = asyncio.create_task(env.closed_after(loop_of(env, Run(3))))
        await asyncio.sleep(RESET_S / 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1

    run(main())
    assert (first.cancelled, spare.cancelled) == (1, 1)


def test_a_thread_that_hangs_in_a_reset_ahead_ends_the_run_when_it_is_waited_for():
    class Hanging(Episodes):
        async def reset(self):
            raise StuckThread("nobody knows where")

    with pytest.raises(StuckThread):
        by_turns(Episodes(), Hanging(), 2)
    assert len(by_turns(Episodes(), Hanging(), 1)[0].kept) == 1
