import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.loops.mailbox import Mailbox
from tests.loops.virtual import run, settle


def test_answers_that_are_there_are_collected_together_and_at_once():
    async def main():
        mailbox = Mailbox()
        first, second = mailbox.expect(7), mailbox.expect(8)
        second("two", None)
        first("one", None)
        assert await mailbox.collect() == [(8, "two", None), (7, "one", None)]
        assert mailbox.idle

    run(main())


def test_a_call_waits_for_the_first_answer_and_takes_those_that_came_with_it():
    async def main():
        mailbox = Mailbox()
        arrive = [mailbox.expect(number) for number in range(3)]
        call = asyncio.create_task(mailbox.collect())
        await settle()
        assert not call.done()
        arrive[0]("a", None)
        arrive[1]("b", None)
        assert await call == [(0, "a", None), (1, "b", None)]
        assert not mailbox.idle

    run(main())


def test_nobody_waits_while_nothing_is_due():
    async def main():
        assert await Mailbox().collect() == []

    run(main())


def test_a_later_call_takes_the_place_of_an_earlier_one():
    async def main():
        mailbox = Mailbox()
        arrive = mailbox.expect(0)
        earlier = asyncio.create_task(mailbox.collect())
        await settle()
        later = asyncio.create_task(mailbox.collect())
        assert await earlier == []
        arrive("a", None)
        assert await later == [(0, "a", None)]

    run(main())


def test_an_error_is_collected_like_an_answer():
    async def main():
        mailbox, error = Mailbox(), KeyError("gone")
        mailbox.expect(3)(None, error)
        assert await mailbox.collect() == [(3, None, error)]

    run(main())


@given(seed=st.integers(0, 10**6), count=st.integers(1, 20))
def test_every_answer_is_collected_once_whenever_calls_and_answers_come(seed, count):
    rng, collected = random.Random(seed), []

    async def call(mailbox):
        collected.extend(await mailbox.collect())

    async def main():
        mailbox = Mailbox()
        due = [(number, mailbox.expect(number)) for number in range(count)]
        rng.shuffle(due)
        calls = [asyncio.create_task(call(mailbox))]
        for number, arrive in due:
            if rng.random() < 0.5:
                await settle()
                calls.append(asyncio.create_task(call(mailbox)))
            arrive(number, None)
        await asyncio.gather(*calls, call(mailbox))
        assert mailbox.idle

    run(main())
    assert sorted(collected) == [(number, number, None) for number in range(count)]
