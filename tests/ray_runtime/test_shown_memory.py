"""Large observations between an env worker and an inference rank, on one machine and on two."""

import os

import numpy as np
import pytest

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime import connection, memory, shown_memory
from rlinf_async.ray_runtime.listening import Listening
from rlinf_async.ray_runtime.shown_memory import Reader, ShownMemory
from tests.listening import listening
from tests.loops.virtual import now, settle


async def test_it_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(ShownMemory, "_show", lambda *message: None)
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    unsent = pytest.raises(PeerError, match="has not sent it for 60 s")
    with shown.holding(np.arange(9)) as ([_, *numbers], address), unsent:
        await reader.read(["another machine", *numbers], address)
    assert now() == shown_memory.READ_TIMEOUT_S


@pytest.fixture
def two_machines(monkeypatch):
    """Whoever writes or sends a value is on one machine; reading is on another if that is in the list."""
    machines = []
    monkeypatch.setattr(connection, "has_other_nodes", lambda: True)
    monkeypatch.setattr(memory, "machine", lambda: machines.pop(0) if machines else "one")
    return machines


@pytest.mark.real_time
async def test_on_one_machine_it_is_mapped_and_no_port_is_opened():
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    before = set(listening(os.getpid()))
    with shown.holding(np.arange(9)) as (place, address):
        assert (await reader.read(place, address)).tolist() == list(range(9))
    assert reader._callers.by_address == {}
    assert set(listening(os.getpid())) == before


@pytest.mark.real_time
async def test_on_one_machine_it_is_sent_to_whom_may_not_map_it(monkeypatch):
    read, tries = shown_memory.read, [True, False]

    def refused(place):
        if tries.pop(0):
            raise PeerError("may not look into it")
        return read(place)

    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    monkeypatch.setattr(shown_memory, "read", refused)
    with shown.holding(np.arange(9)) as (place, address):
        assert (await reader.read(place, address)).tolist() == list(range(9))
    assert len(reader._callers.by_address) == 1


@pytest.mark.real_time
async def test_another_machine_is_sent_it_by_the_process_that_has_it(two_machines):
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    for number in range(3):
        with shown.holding({"image": np.full(300_000, number)}) as (place, address):
            two_machines.append("another")
            assert (await reader.read(place, address))["image"].tolist() == [number] * 300_000
    assert len(reader._callers.by_address) == 1


@pytest.mark.real_time
async def test_what_is_too_long_to_be_sent_is_an_error_and_the_next_value_is_read(two_machines, monkeypatch):
    monkeypatch.setattr(connection, "LONGEST_MESSAGE_BYTES", 2000)
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    with shown.holding(np.zeros(1000)) as (place, address):
        two_machines.append("another")
        with pytest.raises(PeerError, match=r"a message of \d+ bytes is longer than 2000"):
            await reader.read(place, address)
    with shown.holding(np.arange(9)) as (place, address):
        two_machines.append("another")
        assert (await reader.read(place, address)).tolist() == list(range(9))


@pytest.mark.real_time
async def test_what_is_not_there_any_more_is_an_error_on_another_machine_too(two_machines):
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    with pytest.raises(KeyError), shown.holding(np.zeros(9)) as (place, address):
        raise KeyError  # the asker gives up, and its file is closed
    two_machines.append("another")
    with pytest.raises(PeerError, match=r"cannot read what process|any more"):
        await reader.read(place, address)


@pytest.mark.real_time
async def test_a_process_that_has_died_is_an_error_on_another_machine_too(two_machines):
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    with shown.holding(np.zeros(9)) as (place, address):
        two_machines.append("another")
        await reader.read(place, address)
        (caller,) = reader._callers.by_address.values()
        (await caller.connection())._transport.abort()
        for start in shown._listener._starts:
            (await start).close()
        await settle()
        for reads in (reader, Reader()):  # one that had connected, and one that had not
            two_machines.append("another")
            with pytest.raises(PeerError, match="the memory of another process"):
                await reads.read(place, address)
