"""What processes of a run say to each other past Ray, and what happens when one of them dies or lies."""

import asyncio
import errno
import os
import pickle
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.nodes.machines import machines, unavailable
from rlinf_async.core.failures import PeerError
from rlinf_async.wire import connection, nodes, peers
from rlinf_async.wire.connection import (
    LENGTH_FORMAT,
    TOKEN_BYTES,
    TOKEN_TIMEOUT_S,
    Connection,
    Listener,
)
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.peers import Peer, Peers
from rlinf_async.wire.strangers import NONCE_BYTES, PROOF_BYTES, STRANGERS, Handshake, Silent
from tests.listening import listening
from tests.loops.virtual import now, settle
from tests.second_network import Wire

TOKEN = bytes(range(TOKEN_BYTES))


class Transport:
    """Keeps what is written."""

    def __init__(self):
        self.written = bytearray()

    def write(self, data):
        self.written += data

    def writelines(self, parts):
        self.written += b"".join(parts)

    def is_closing(self):
        return False

    def abort(self):
        self.aborted = True

    def pop(self):
        written, self.written = bytes(self.written), bytearray()
        return written


def end(heard, *, lost=None, token=TOKEN):
    """One end of a connection whose other end is the test."""
    made = Connection(lambda _, *message: heard.append(message), token=token, on_loss=lost)
    made.connection_made(Transport())
    return made


def shake_hands(listens, connects):
    """Have two ends show each other that they know the token; what both say."""
    said = b""
    for speaks, hears in ((listens, connects), (connects, listens), (listens, connects)):
        words = speaks._transport.pop()
        said += words
        hears.data_received(words)
    return said


class Echo:
    """A listener that sends everything back under its key, and its peers."""

    def __init__(self):
        self.heard = []
        self.listener = Listener(Listening.REQUESTS, self._receive)

    def _receive(self, connection, key, *message):
        self.heard.append((key, *message))
        connection.send(key, message, None)

    def address(self, far):
        return self.listener.address(None if far else this_node())

    def peer(self, *, far=False):
        async def where():
            return self.address(far)

        return Peer("the echo", where)

    async def stranger(self, data, *, far=False, knows=False):
        """Somebody who connects by other means, and sends `data`, perhaps when he has shown that he knows the
        token; returns his socket."""
        place, _ = self.address(far)
        opened = socket.socket(socket.AF_INET if far else socket.AF_UNIX)
        opened.connect(place)
        opened.setblocking(False)
        loop = asyncio.get_running_loop()
        if knows:
            shake = Handshake(self.address(far)[1], "connects")
            await loop.sock_sendall(opened, shake.hear(await loop.sock_recv(opened, NONCE_BYTES)))
            shake.hear(await loop.sock_recv(opened, PROOF_BYTES))
        await loop.sock_sendall(opened, data)
        return opened


async def hung_up(opened):
    """Wait until the other side has ended the connection without a word."""
    with suppress(ConnectionResetError):  # it has left something unread
        nonce = await asyncio.get_running_loop().sock_recv(opened, NONCE_BYTES)
        if len(nonce) == NONCE_BYTES:
            nonce = await asyncio.get_running_loop().sock_recv(opened, 1)
        assert nonce == b""
    opened.close()


NEAR_AND_FAR = [False, pytest.param(True, marks=pytest.mark.real_time)]
"""TCP takes real time."""


MESSAGES = st.lists(st.tuples(st.integers(), st.binary(max_size=40)), max_size=8)


@settings(deadline=None, max_examples=60)
@given(messages=MESSAGES, cuts=st.lists(st.integers(1, 60), max_size=30), turns=st.lists(st.booleans()))
def test_messages_arrive_once_and_in_order_however_bytes_are_cut(messages, cuts, turns):
    async def main():
        heard = []
        sender, receiver = end([], lost=print), end(heard)
        shake_hands(receiver, sender)
        for message, turn in zip(messages, turns + [False] * len(messages), strict=False):
            sender.send(*message)
            if turn:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = bytes(sender._transport.written)
        for cut in cuts:
            receiver.data_received(rest[:cut])
            rest = rest[cut:]
        receiver.data_received(rest)
        assert heard == messages

    asyncio.run(main())


@pytest.mark.real_time
async def test_a_message_that_leaves_now_leaves_behind_those_of_its_turn():
    sender, leaving = end([], lost=print), []
    shake_hands(end([]), sender)
    sender._transport.writelines = leaving.append
    sender.send(1)
    sender.send_now(2)
    assert [pickle.loads(frame) for frame in leaving[0][1::2]] == [(1,), (2,)]
    await asyncio.sleep(0)
    assert len(leaving) == 1


class Accepting(Echo):
    """An echo that keeps the connections of those who have sent something."""

    def _receive(self, connection, key, *message):
        self.connection = connection
        self.heard.append(message)
        if message == ("wrong",):
            raise ZeroDivisionError


@pytest.mark.real_time
async def test_what_has_come_during_a_pause_is_read_at_once_and_the_pause_lasts_on():
    accepting = Accepting()
    peer = accepting.peer()
    peer.cast(0, "first")
    await settle()
    accepting.connection.pause()
    for message in ("second", "third"):
        peer.cast(0, message)
        await settle()
    assert accepting.heard == [("first",)]
    assert accepting.connection.read_waiting() > 0
    assert accepting.heard == [("first",), ("second",), ("third",)]
    assert accepting.connection.read_waiting() == 0
    peer.cast(0, "fourth")
    await settle()
    assert len(accepting.heard) == 3
    peer._connection.abort()
    await settle()
    assert accepting.connection.read_waiting() > 0
    assert accepting.connection.read_waiting() is None
    assert accepting.heard[3:] == [("fourth",)]


@pytest.mark.real_time
async def test_an_error_in_what_is_read_at_once_ends_that_connection_and_is_reported():
    accepting, reported = Accepting(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    peer = accepting.peer()
    peer.cast(0, "first")
    await settle()
    accepting.connection.pause()
    peer.cast(0, "wrong")
    await settle()
    assert accepting.connection.read_waiting() is None
    await settle()
    assert [type(error) for error in reported] == [ZeroDivisionError]
    assert peer.lost is not None


@pytest.mark.real_time
async def test_messages_of_one_turn_leave_together():
    sender, leaving = end([], lost=print), []
    shake_hands(end([]), sender)
    sender._transport.writelines = leaving.append
    for number in range(3):
        sender.send(number)
    assert leaving == []
    await asyncio.sleep(0)
    assert len(leaving) == 1


@pytest.mark.parametrize("far", NEAR_AND_FAR)
async def test_a_call_gets_the_result_under_its_key(far):
    echo = Echo()
    peer = echo.peer(far=far)
    calls = [asyncio.create_task(peer.call(b"x" * 300_000, key)) for key in range(5)]
    for key, call in enumerate(calls):
        assert await call == (b"x" * 300_000, key)
    assert [message[0] for message in echo.heard] == list(range(5))


async def test_more_processes_than_a_hundred_may_connect_while_the_listener_is_busy():
    echo = Echo()
    place, _ = echo.address(False)
    for _ in range(2):  # before it has started, and after
        with ExitStack() as callers:
            for _ in range(140):
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect(place)
        await settle()
    assert await echo.peer().call() == ()


class Trap:
    """Says so when it is unpickled."""

    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


STRANGE = [bytes(NONCE_BYTES + PROOF_BYTES), b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2, b"\xff" * 4096]


@pytest.mark.parametrize("far", NEAR_AND_FAR)
@pytest.mark.parametrize("said", STRANGE, ids=len)
async def test_nothing_is_read_of_what_comes_with_a_wrong_token(far, said):
    echo = Echo()
    trap = pickle.dumps((Trap(),))
    await hung_up(await echo.stranger(said + LENGTH_FORMAT.pack(len(trap)) + trap, far=far))
    assert echo.heard == []
    assert not Trap.sprung
    assert await echo.peer(far=far).call() == ()
    assert echo.heard == [(0,)]


def test_the_token_is_not_among_what_is_said_and_what_was_said_opens_nothing_again():
    async def main():
        heard, lost = [], []
        listens, connects = end(heard), end([], lost=lost.append)
        said = shake_hands(listens, connects)
        connects.send("private")
        await asyncio.sleep(0)
        listens.data_received(connects._transport.pop())
        assert heard == [("private",)]
        assert TOKEN not in said
        # Somebody who has heard all of it says the same words to the same listener.
        again = end(heard)
        again.data_received(said[NONCE_BYTES : 2 * NONCE_BYTES + PROOF_BYTES])
        assert again._transport.aborted
        # And one who sends back to the listener what it says itself.
        mirrored = end(heard)
        mirrored.data_received(mirrored._transport.pop() * 2)
        assert mirrored._transport.aborted

    asyncio.run(main())


def test_who_connects_says_nothing_to_a_listener_that_does_not_know_the_token_and_reads_nothing_of_it():
    async def main():
        told = []
        connects = end(told, lost=print)
        connects.send("private")
        await asyncio.sleep(0)
        connects.data_received(bytes(NONCE_BYTES))
        assert len(connects._transport.pop()) == NONCE_BYTES + PROOF_BYTES
        trap = pickle.dumps((Trap(),))
        connects.data_received(bytes(PROOF_BYTES) + LENGTH_FORMAT.pack(len(trap)) + trap)
        assert connects._transport.aborted
        assert connects._transport.pop() == b""
        assert (told, Trap.sprung) == ([], False)

    asyncio.run(main())


FLOOD = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
opened = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for each in opened:
    each.settimeout(5)
    each.connect("\\0" + sys.argv[1])
print("connected", flush=True)
ended = sum(each.recv(1) == b"" for each in opened)
print(ended, flush=True)
"""


@pytest.mark.real_time
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
async def test_silent_connections_of_another_account_hold_no_descriptor_and_are_one_record(monkeypatch):
    recorded = []
    monkeypatch.setattr(STRANGERS, "_record", lambda error: recorded.append(error))
    echo = Echo()
    place, _ = echo.address(False)
    used, most = len(os.listdir("/proc/self/fd")), 0
    flood = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FLOOD, place[1:], "300"), stdout=subprocess.PIPE
    )
    said = asyncio.create_task(flood.stdout.read())
    while not said.done():
        most = max(most, len(os.listdir("/proc/self/fd")))
        assert await echo.peer().call() == ()
    await flood.wait()
    assert (await said).split() == [b"connected", b"300"]
    # Each caller of this test keeps its two ends; no stranger keeps any.
    assert most - used < 2 * len(echo.heard) + 40
    (sentence,) = recorded
    assert sentence.startswith("a process of the account 65534 has connected to the request channel for requ")


@pytest.mark.real_time
async def test_silent_connections_from_another_machine_are_capped_and_it_loses_its_oldest(
    monkeypatch,
):
    monkeypatch.setattr(connection, "Silent", lambda: Silent(4))
    monkeypatch.setattr(connection, "TOKEN_TIMEOUT_S", 1e4)  # the cap ends them, and not their silence
    echo = Echo()
    silent = [await echo.stranger(b"", far=True) for _ in range(8)]
    for opened in silent[:4]:
        await hung_up(opened)
    assert await echo.peer(far=True).call() == ()
    for opened in silent[4:]:
        opened.close()


def test_the_host_with_most_silent_connections_loses_one_and_no_other_does():
    ended, silent = [], Silent(5)
    for number, host in enumerate("abbbaa"):
        silent.add(number, host, lambda number=number: ended.append(number))
    assert ended in ([0], [1])
    silent.discard(2)
    silent.add(6, "c", lambda: ended.append(6))
    silent.add(7, "b", lambda: ended.append(7))
    assert len(silent) == 5
    assert 6 not in ended


async def test_who_is_turned_away_before_anything_was_said_comes_again(monkeypatch):
    echo, turned_away = Echo(), ["somebody"] * 3
    monkeypatch.setattr(
        connection, "stranger_by_account", lambda _: turned_away.pop() if turned_away else None
    )
    assert await echo.peer().call("asked") == ("asked",)
    turned_away += ["somebody"] * 3
    Peers("the echo").at(echo.address(False)).cast(2, "told")
    await asyncio.sleep(10)
    assert echo.heard == [(0, "asked"), (2, "told")]


async def test_who_is_turned_away_again_and_again_says_so(monkeypatch):
    monkeypatch.setattr(connection, "stranger_by_account", lambda _: "somebody")
    with pytest.raises(PeerError, match="ended the connection 6 times before the handshake was done"):
        await Echo().peer().call()


@pytest.mark.real_time
async def test_a_listener_without_descriptors_goes_on_when_there_are_some(monkeypatch):
    echo, full = Echo(), [True, True]
    echo.address(False)
    accept = socket.socket.accept

    def accepting(self):
        if full:
            full.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", accepting)
    assert await echo.peer().call() == ()
    assert full == []


async def test_what_comes_with_the_token_is_read():
    """The trap of the test above would spring."""
    echo = Echo()
    trap = pickle.dumps((Trap(),))
    opened = await echo.stranger(LENGTH_FORMAT.pack(len(trap)) + trap, knows=True)
    await settle()
    assert Trap.sprung
    opened.close()
    Trap.sprung = False


@pytest.mark.parametrize("said", [b"", bytes(3)])
async def test_who_does_not_show_a_token_in_time_is_let_go(said):
    echo = Echo()
    await hung_up(await echo.stranger(said))
    assert now() == TOKEN_TIMEOUT_S


async def test_a_frame_that_is_too_long_ends_its_connection_and_no_other():
    echo = Echo()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    await hung_up(await echo.stranger(LENGTH_FORMAT.pack(2**40), knows=True))
    assert echo.heard == []
    assert await echo.peer().call() == ()


async def test_a_call_says_that_a_frame_was_too_long():
    echo = Echo()
    peer = echo.peer()
    assert await peer.call() == ()
    peer._connection._buffer += LENGTH_FORMAT.pack(2**40)
    with pytest.raises(PeerError, match=r"the echo has ended the connection: a frame of \d+ bytes is long"):
        await peer.call()


async def test_a_frame_of_which_half_has_come_when_its_sender_dies_is_nothing():
    echo = Echo()
    frame = pickle.dumps((1, bytes(1000)))
    opened = await echo.stranger(LENGTH_FORMAT.pack(len(frame)) + frame[:500], knows=True)
    await settle()
    opened.close()
    await settle()
    assert echo.heard == []
    assert await echo.peer().call() == ()


LISTENING = """
import asyncio
from rlinf_async.wire.connection import Listener
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.strangers import NONCE_BYTES, PROOF_BYTES, STRANGERS, Handshake, Silent

async def main():
    heard = lambda connection, key, *message: print("heard", flush=True)
    print(Listener(Listening.REQUESTS, heard).address(this_node()), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
CALLING = """
import asyncio
from rlinf_async.wire.peers import Peer

async def main():
    async def where():
        return {address!r}
    print(await Peer("the test", where).call())

asyncio.run(main())
"""


def process(script, *, within=(), **options):
    command = [*within, sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.real_time
async def test_whoever_waits_for_a_process_that_is_killed_is_told_at_once_and_whoever_asks_later():
    listening = process(LISTENING)
    address = eval(listening.stdout.readline())

    async def where():
        return address

    peer = Peer("the other process", where)
    calls = [asyncio.create_task(peer.call()) for key in range(3)]
    assert await asyncio.to_thread(listening.stdout.readline) == "heard\n"
    listening.kill()
    for call in calls:
        with pytest.raises(PeerError, match="the other process has ended the connection"):
            await call
    with pytest.raises(PeerError, match="the other process has ended the connection"):
        await peer.call()
    listening.communicate()
    with pytest.raises(PeerError, match=r"cannot be reached at .*Connection refused"):
        await Peer("the other process", where).call()


@pytest.mark.real_time
async def test_what_is_said_to_a_process_that_was_killed_is_nothing():
    heard = asyncio.Queue()
    listener = Listener(
        Listening.REQUESTS, lambda connection, *message: heard.put_nowait((connection, message))
    )
    address = listener.address(this_node())
    calling = [process(CALLING.format(address=address)) for _ in range(2)]
    first, second = [(await heard.get())[0] for _ in range(2)]
    calling[0].kill()
    calling[0].communicate()
    for one in (first, second):
        one.send(0, "to one of them", None)
    assert (await asyncio.to_thread(calling[1].communicate))[0] == "to one of them\n"


@pytest.mark.parametrize("far", NEAR_AND_FAR)
async def test_what_is_sent_before_there_is_a_connection_arrives_in_order(far):
    heard = asyncio.Queue()
    listener = Listener(Listening.REQUESTS, lambda _, number: heard.put_nowait(number))
    address, listeners = listener.address(None if far else this_node()), Peers("the listener")
    for number in range(3):
        listeners.at(address).cast(number)
        await asyncio.sleep(0)
    assert [await heard.get() for _ in range(3)] == [0, 1, 2]
    assert len(listeners.by_address) == 1


async def test_what_is_sent_to_nobody_is_nothing_and_a_sender_connects_again():
    heard, listeners = [], Peers("the listener")
    nobody = ("\0rlinf-async-nobody", TOKEN)
    listeners.at(nobody).cast(1)
    await settle()
    assert listeners.by_address == {}
    listener = Listener(Listening.REQUESTS, lambda _, *message: heard.append(message))
    address = listener.address(this_node())
    for number in range(2):
        listeners.at(address).cast(number)
        await settle()
        listeners.at(address)._connection.abort()
        await settle()
        assert listeners.by_address == {}
    assert heard == [(0,), (1,)]


async def test_a_question_behind_the_end_of_a_connection_makes_another():
    echo, echoes = Echo(), Peers("the echo")
    nobody = ("\0rlinf-async-nobody", TOKEN)
    for _ in range(2):
        with pytest.raises(PeerError, match="cannot be reached"):
            await echoes.call(nobody, timeout_s=None)
    address = echo.address(False)
    for number in range(2):
        assert await echoes.call(address, number, timeout_s=None) == (number,)
        echoes.by_address[address]._connection.abort()
        await settle()
    assert echoes.by_address == {}


async def test_an_asker_that_gives_up_does_not_take_the_connection_with_it():
    echo = Echo()
    peer = echo.peer()
    first, second = (asyncio.create_task(peer.call()) for key in (1, 2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ()


@pytest.mark.real_time
async def test_nothing_listens_on_a_port_until_another_machine_asks_where():
    echo = Echo()
    before = set(listening(os.getpid()))
    await echo.peer().call()
    assert set(listening(os.getpid())) <= before
    await echo.peer(far=True).call()
    assert {address for _, address in set(listening(os.getpid())) - before} <= {"127.0.0.1"}


def test_what_is_for_processes_of_one_node_tells_no_other_where_it_is():
    listener = Listener(Listening.MIRRORED_WEIGHTS, print)
    with pytest.raises(ValueError, match="MIRRORED_WEIGHTS is for processes of the same node"):
        listener.address(None)


FAR = """
import asyncio
from rlinf_async.wire import connection
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.strangers import NONCE_BYTES, PROOF_BYTES, STRANGERS, Handshake, Silent

async def main():
    connection.node_address = lambda: "192.0.2.1"
    answer = lambda connection, key, *message: connection.send(key, message, None)
    listener = connection.Listener(Listening.REQUESTS, answer)
    print([listener.address(connection.this_node()), listener.address(None)], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_between_machines_it_is_tcp_and_unix_sockets_are_not_seen():
    with machines(2) as (here, there):
        assert here.address == "192.0.2.1"
        listening = process(FAR, within=here.within())
        near, far = eval(listening.stdout.readline())
        told = process(CALLING.format(address=far), within=there.within())
        assert told.communicate()[0] == "()\n"
        told = process(CALLING.format(address=near), within=there.within(), stderr=subprocess.PIPE)
        assert "PeerError: the test cannot be reached at" in told.communicate()[1]
        assert process(CALLING.format(address=near), within=here.within()).communicate()[0] == "()\n"
    listening.communicate(timeout=60)  # it has ended with its machine


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.real_time
async def test_beyond_a_link_that_is_cut_an_answer_is_waited_for_until_ray_has_missed_the_node(
    monkeypatch, request
):
    wire, looked, loop = Wire(), asyncio.Queue(), asyncio.get_running_loop()
    request.addfinalizer(wire.close)
    node = {"NodeManagerAddress": wire.there, "Alive": True}

    def listed():
        loop.call_soon_threadsafe(looked.put_nowait, None)
        return [{"NodeManagerAddress": wire.here, "Alive": True}, node]

    monkeypatch.setattr(nodes.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(nodes.ray, "nodes", listed)
    monkeypatch.setattr(connection, "this_node", lambda: "here")
    monkeypatch.setattr(connection, "node_address", lambda: wire.there)
    monkeypatch.setattr(peers, "LOOK_S", 0.01)
    echo, echoes = Echo(), Peers("the echo")
    with wire.other_end():
        address = echo.address(True)
    assert await echoes.call(address, "first", timeout_s=60.0) == ("first",)
    wire.cut()
    asked = asyncio.create_task(echoes.call(address, "second", timeout_s=60.0))
    for _ in range(3):
        await looked.get()
    assert not asked.done()
    node["Alive"] = False
    with pytest.raises(PeerError, match="the echo was on a node that is lost"):
        await asked
    assert [message for _, message in echo.heard] == ["first"]
