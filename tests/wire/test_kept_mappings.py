"""A value that is read through a kept mapping is the one that was written there."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.failures import PeerError
from rlinf_async.wire import kept_mappings
from rlinf_async.wire.kept_mappings import SMALLEST_KEPT_BYTES, KeptMappings
from rlinf_async.wire.memory import MemoryFile, MemoryPool, Pickled, Reuse
from tests.open_files import memory_files

SIZE = SMALLEST_KEPT_BYTES + 3 * os.sysconf("SC_PAGESIZE")


def filled(number, size=SIZE):
    return np.full(size, number, dtype=np.uint8)


def file_of(place):
    return place[3]


def mappings():
    """The number of mappings of whole memory files in this process, each line of which is one."""
    with open("/proc/self/maps") as lines:
        spans = [line.split()[0].split("-") for line in lines if "memfd:rlinf-async" in line]
    return sum(int(end, 16) - int(first, 16) >= SIZE for first, end in spans)


@pytest.fixture
def pool():
    gc.collect()  # what other tests have left
    return MemoryPool(Reuse.UNMAPPED)


def test_values_of_one_file_are_read_through_one_mapping(pool):
    kept, files, open_files, mapped = KeptMappings(), set(), set(), set()
    for number in range(5):
        with pool.holding([filled(number), number]) as place:
            content, said = kept.read(place)
        assert (content == number).all()
        assert said == number
        del content
        files.add(file_of(place))
        open_files.add(memory_files())
        mapped.add(mappings())
    assert [len(seen) for seen in (files, open_files, mapped)] == [1, 1, 1]


def test_a_value_that_is_held_is_never_another_one(pool):
    kept = KeptMappings()
    with pool.holding([filled(1), np.arange(9)]) as first:
        held, also_held = kept.read(first)
    for number in range(2, 6):
        with pool.holding(filled(number)) as place:
            assert file_of(place) != file_of(first)
            assert (kept.read(place) == number).all()
        assert (held == 1).all()
    del held
    with pool.holding(filled(7)) as place:
        assert file_of(place) != file_of(first), "the small array keeps the file, too"
    assert also_held.tolist() == list(range(9))
    del also_held
    with pool.holding(filled(8)) as one, pool.holding(filled(9)) as other:
        assert file_of(first) in (file_of(one), file_of(other))
        assert [kept.read(place)[0] for place in (one, other)] == [8, 9]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["drop", "write to", "keep"]), st.integers(0, 3), st.integers(0, 4)),
        max_size=25,
    )
)
def test_whatever_is_held_dropped_or_written_to_every_value_is_its_own(steps):
    pool, kept, held = MemoryPool(Reuse.UNMAPPED), KeptMappings(), {}
    for number, (what, extra, which) in enumerate(steps):
        with pool.holding(filled(number, SIZE + extra * 100_000)) as place:
            held[number] = [kept.read(place), number]
        chosen = sorted(held)[which % len(held)]
        if what == "drop":
            del held[chosen]
        elif what == "write to":
            held[chosen][0][:] = held[chosen][1] = 100 + number
        assert all(content.min() == content.max() == value for content, value in held.values())
        kept.let_go()


def test_a_page_that_was_written_to_does_not_hide_the_next_value(pool):
    kept = KeptMappings()
    for number, written in enumerate((0, -1, 0)):
        with pool.holding(filled(number)) as place:
            content = kept.read(place)
        assert (content == number).all()
        content[written] = 77
        del content


def test_where_the_kernel_does_not_tell_which_pages_were_written_to_every_value_has_its_mapping(
    pool, monkeypatch, tmp_path
):
    monkeypatch.setattr(kept_mappings, "PAGES", tmp_path / "missing")
    kept, mapped = KeptMappings(), set()
    for number in range(3):
        with pool.holding(filled(number)) as place:
            content = kept.read(place)
        content[0] = 77
        assert content[1] == number
        del content
        mapped.add(mappings())
    assert len(mapped) == 1


def test_a_file_that_has_grown_is_mapped_anew_and_is_read_to_its_end(pool):
    kept = KeptMappings()
    with pool.holding(filled(1)) as first:
        assert (kept.read(first) == 1).all()
    with pool.holding(filled(2, 3 * SIZE)) as place:
        assert file_of(place) == file_of(first)
        assert (kept.read(place) == 2).all()


def test_mappings_of_files_that_were_closed_and_of_dead_processes_are_let_go():
    gc.collect()
    kept, before = KeptMappings(), memory_files()
    files = [MemoryFile(), MemoryFile()]
    for number, file in enumerate(files):
        assert (kept.read(file.write(Pickled(filled(number)))) == number).all()
    script = (
        "import numpy; from rlinf_async.wire.memory import MemoryFile, Pickled\n"
        f"print(MemoryFile().write(Pickled(numpy.full({SIZE}, 5, numpy.uint8))), flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as other:
        place = eval(other.stdout.readline())
        content = kept.read(place)
        kept.let_go()
        assert len(kept._mappings) == 3
    files[0].close()
    kept.let_go()
    assert len(kept._mappings) == 1
    assert (content == 5).all(), "what was read outlives its process"
    with pytest.raises(PeerError):
        kept.read(place)
    del content
    files[1].close()
    kept.let_go()
    assert memory_files() == before


def test_another_file_under_the_same_number_is_not_mistaken_for_it():
    kept, file = KeptMappings(), MemoryFile()
    place = file.write(Pickled(filled(1)))
    assert kept.read(place)[0] == 1
    file.close()
    # The system gives the lowest free numbers.
    others = [MemoryFile() for _ in range(3)]
    places = [other.write(Pickled(filled(number))) for number, other in enumerate(others, start=2)]
    assert place[2] in [other[2] for other in places]
    assert [kept.read(other)[0] for other in places] == [2, 3, 4]
    with pytest.raises(PeerError):
        kept.read(place)
    for other in others:
        other.close()


def test_memory_that_is_being_written_is_not_read():
    kept, file = KeptMappings(), MemoryFile()
    place = file.write(Pickled(filled(1)))
    assert kept.read(place)[0] == 1
    assert file.lock()
    with pytest.raises(PeerError, match="is being written again"):
        kept.read(place)
    file.unlock()
    assert kept.read(place)[0] == 1
    file.close()


def test_small_values_are_mapped_by_themselves(pool):
    kept, before = KeptMappings(), memory_files()
    with pool.holding(filled(1, 5000)) as place:
        assert (kept.read(place) == 1).all()
    assert memory_files() == before + 2
