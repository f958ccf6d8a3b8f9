"""Where the environments of a deterministic run begin anew."""

import asyncio

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.loops.renewal import Renewal
from tests.making import run_settings, ticket


def settings(*, deterministic=True, save_every=2):
    block = {"mode": "train", "deterministic": deterministic}
    return run_settings(asynchrony=AsyncConfig.from_mapping(block), save_every=save_every)


def renewed(versions, **changes):
    """At which of the tickets, of these versions, environments were built anew."""
    found = []

    async def renew(step):
        found.append(step)

    async def main():
        renewal = Renewal(settings(**changes), renew)
        for version in versions:
            await renewal.before(ticket(version=version))

    asyncio.run(main())
    return found


def test_environments_begin_anew_once_at_every_checkpoint_that_is_due():
    assert renewed([0, 0, 1, 1, 2, 2, 3, 4, 4]) == [2, 4]


def test_the_first_checkpoint_may_be_due_after_the_first_step():
    assert renewed([0, 1, 1, 2], save_every=1) == [1, 2]


def test_a_run_that_goes_on_from_a_checkpoint_begins_anew_there_too():
    assert renewed([2, 2, 3, 4]) == [2, 4]


@pytest.mark.parametrize("changes", [{"deterministic": False}, {"save_every": 0}])
def test_nowhere_in_other_runs(changes):
    assert renewed([0, 1, 2, 3, 4], **changes) == []


@pytest.mark.real_time
async def test_what_could_not_be_built_is_built_again_at_the_next_attempt():
    attempts = []

    async def renew(step):
        attempts.append(step)
        if len(attempts) == 1:
            raise OSError("no memory")

    renewal = Renewal(settings(), renew)
    with pytest.raises(OSError, match="no memory"):
        await renewal.before(ticket(version=2))
    await renewal.before(ticket(version=2))
    await renewal.before(ticket(version=2))
    assert attempts == [2, 2]
