import pickle
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlinf_async.core.failures import PeerError
from rlinf_async.wire.memory import IDLE_ROUNDS, MemoryFile, MemoryPool, Pickled, Reuse, read
from tests.open_files import memory_files

DESCRIPTORS = 2
"""Of a memory file: its own, and that of its mapping."""
VALUES = st.recursive(
    st.one_of(
        st.text(max_size=5),
        st.none(),
        arrays.arrays(
            st.sampled_from([np.uint8, np.float32, np.int64, np.bool_]),
            arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.fixture
def file():
    file = MemoryFile()
    yield file
    file.close()


@settings(deadline=None, max_examples=80)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_whatever_is_written_is_read_as_it_was_whatever_was_there_before(values):
    file = MemoryFile()
    for value in values:
        place = pickle.loads(pickle.dumps(file.write(Pickled(value))))
        np.testing.assert_equal(read(place), value)
    file.close()


def test_a_message_holds_no_pixels(file):
    assert len(pickle.dumps(file.write(Pickled({"image": np.zeros((64, 64, 3), dtype=np.uint8)})))) < 1000


def test_memory_that_is_being_written_is_not_read(file):
    place = file.write(Pickled([1, np.arange(10)]))
    assert file.lock()
    with pytest.raises(PeerError, match="is being written again"):
        read(place)
    file.unlock()
    assert read(place)[0] == 1


def test_another_process_reads_it(file):
    place = file.write(Pickled([np.arange(10), np.ones((3, 4), dtype=np.float32)]))
    script = f"from rlinf_async.wire.memory import read; a, b = read({place!r}); print(a.sum() + b.sum())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "57.0\n"


def test_writing_to_what_was_read_changes_nothing_for_others(file):
    place = file.write(Pickled(np.zeros(4)))
    read(place)[:] = 1
    assert read(place).tolist() == [0, 0, 0, 0]


def test_what_was_read_outlives_the_file():
    file = MemoryFile()
    seen = read(file.write(Pickled(np.arange(4))))
    file.close()
    assert seen.tolist() == [0, 1, 2, 3]


def test_what_a_dead_process_held_is_gone():
    script = (
        "from rlinf_async.wire.memory import MemoryFile, Pickled; print(MemoryFile().write(Pickled(None)))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    place = eval(told)
    with pytest.raises(PeerError, match=f"process {place[1]}"):
        read(place)


def test_another_file_under_the_same_number_is_not_mistaken_for_it():
    file = MemoryFile()
    place = file.write(Pickled(None))
    file.close()
    other = MemoryFile()
    assert other.write(Pickled(None))[2][0][0] == place[2][0][0], "the system gives the lowest free number"
    with pytest.raises(PeerError, match="has released the memory"):
        read(place)
    other.close()


def test_what_another_machine_holds_under_the_same_numbers_is_not_mistaken_for_it(file):
    _, *numbers = file.write(Pickled(None))
    with pytest.raises(PeerError, match="another machine"):
        read(["another machine", *numbers])


def test_a_pool_uses_its_files_again():
    pool, opened = MemoryPool(), set()
    for _ in range(5):
        with pool.holding(np.zeros(9)) as one, pool.holding(np.ones(9)) as other:
            assert read(one).sum() + read(other).sum() == 9
        opened.add(memory_files())
    assert len(opened) == 1


def test_what_was_given_up_is_not_overwritten():
    pool = MemoryPool()
    before = memory_files()
    with pytest.raises(KeyError), pool.holding(None) as place:
        raise KeyError
    with pytest.raises(PeerError):
        read(place)
    assert memory_files() == before


@pytest.mark.parametrize("reuse", [Reuse.AT_ONCE, Reuse.UNMAPPED])
def test_what_is_mapped_stays_as_it_was_and_its_memory_is_used_again_when_the_last_array_is_gone(reuse):
    pool = MemoryPool(reuse)
    with pool.holding([np.zeros(9), np.ones(9)]) as place:
        (mapped, also_mapped), first = read(place), inode(place)
    with pool.holding(np.full(9, 2)) as place:
        assert inode(place) != first
    del mapped
    with pool.holding(np.full(9, 3)) as place:
        assert inode(place) != first
    assert also_mapped.tolist() == [1] * 9
    del also_mapped
    with pool.holding([]) as place, pool.holding([]) as another_place:
        assert first in (inode(place), inode(another_place))


def test_files_of_a_fuller_moment_are_closed_when_no_value_has_needed_them_for_long():
    pool, before = MemoryPool(), memory_files()
    with ExitStack() as together:
        for _ in range(5):
            together.enter_context(pool.holding(np.zeros(9)))
    for number in range(5 * IDLE_ROUNDS + 1):
        assert memory_files() == before + 5 * DESCRIPTORS
        with pool.holding(np.full(9, number)) as place:
            first = inode(place)
    with pool.holding(np.ones(9)) as place:
        assert memory_files() == before + DESCRIPTORS
        assert inode(place) == first


def test_files_that_several_values_need_at_a_time_are_kept():
    pool, kept = MemoryPool(), set()
    for _ in range(10 * IDLE_ROUNDS):
        with pool.holding(np.zeros(9)) as one, pool.holding(np.ones(9)) as other:
            kept |= {inode(one), inode(other)}
    assert len(kept) == 2


def test_a_file_that_a_reader_maps_for_long_is_closed_when_it_is_free_and_the_reader_keeps_its_value():
    pool = MemoryPool(Reuse.UNMAPPED)
    with pool.holding(np.arange(9)) as place:
        mapped, first = read(place), inode(place)
    for number in range(10 * IDLE_ROUNDS):
        with pool.holding(np.full(9, number)) as place:
            assert inode(place) != first
    assert mapped.tolist() == list(range(9))
    del mapped
    held = memory_files()
    with pool.holding(None):
        assert memory_files() == held - DESCRIPTORS


def test_the_memory_that_a_process_mapped_is_used_again_when_it_has_been_killed():
    pool = MemoryPool(Reuse.UNMAPPED)
    with pool.holding(np.arange(9)) as place:
        script = f"from rlinf_async.wire.memory import read; a = read({place!r}); print(a.sum()); input()"
        reader = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert reader.stdout.readline() == "36\n"
    with reader, pool.holding(None) as other_place:
        assert inode(other_place) != inode(place)
        reader.kill()
    with pool.holding(None) as one, pool.holding(None) as another:
        assert inode(place) in (inode(one), inode(another))


def test_of_free_files_the_smallest_that_is_large_enough_is_taken():
    pool = MemoryPool(Reuse.UNMAPPED)
    sizes = (100, 10_000, 1000)
    with ExitStack() as held:
        by_size = {size: inode(held.enter_context(pool.holding(np.zeros(size)))) for size in sizes}
    for size, fits in ((90, 100), (900, 1000), (5000, 10_000), (20_000, 10_000)):
        with pool.holding(np.zeros(size)) as place:
            assert inode(place) == by_size[fits]


def test_who_comes_late_finds_nothing_where_memory_is_never_used_again():
    pool = MemoryPool(Reuse.NEVER)
    with pool.holding(np.arange(9)) as place:
        assert read(place).sum() == 36
    with pool.holding(np.ones(9)), pytest.raises(PeerError):
        read(place)


def inode(place):
    return place[2][0][1]
