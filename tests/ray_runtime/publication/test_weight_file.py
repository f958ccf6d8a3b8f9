"""Versions of weights in memory that other processes map, without Ray."""

import gc
import pickle
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.publication import weight_file
from rlinf_async.ray_runtime.publication.weight_file import (
    OpenedWeights,
    WeightFile,
    WeightsGone,
    WeightVersions,
    bytes_of,
    write_head,
)
from tests.open_files import memory_files
from tests.ray_runtime.publication.copies import read

ADDRESS = ("nobody", b"")
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8]


def written(versions, tensors, version):
    head, size = bytes_of({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
    for name, place in write_head(versions.begin(size), head).items():
        place.copy_(tensors[name])
    versions.publish(version)
    return versions.place(ADDRESS)


def one(value, count=5):
    return {"one": torch.full((count,), float(value))}


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    ),
    st.integers(0, 99),
)
def test_tensors_of_all_types_and_shapes_are_read_as_they_were_written(kinds, seed):
    torch.manual_seed(seed)
    tensors = {name: (100 * torch.randn(shape)).to(dtype) for name, (dtype, shape) in kinds.items()}
    found = read(written(WeightVersions(changes=True), tensors, seed))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_another_process_reads_it_and_cannot_change_it():
    place = written(WeightVersions(changes=True), one(3), 7)
    program = """
import pickle, sys
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights
with OpenedWeights(pickle.load(sys.stdin.buffer)) as tensors:
    print(tensors["one"].tolist())
    tensors["one"].zero_()
"""
    said = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(place), stdout=subprocess.PIPE)
    assert said.stdout.decode().strip() == str([3.0] * 5)
    assert read(place)["one"].tolist() == [3.0] * 5


def test_the_newest_version_stays_as_it_is_while_the_next_is_written():
    versions = WeightVersions(changes=True)
    first = written(versions, one(1), 1)
    size = first.size
    versions.begin(size).zero_()
    assert read(first)["one"].tolist() == [1.0] * 5
    assert versions.place(ADDRESS) == first


def test_a_version_that_is_half_written_is_not_read():
    versions = WeightVersions(changes=True)
    first, _ = written(versions, one(1), 1), written(versions, one(2), 2)
    versions.begin(first.size)
    with pytest.raises(WeightsGone, match="version 1 of the weights is being overwritten"):
        OpenedWeights(first)


def test_a_version_whose_writer_gave_up_is_not_read():
    file = WeightFile(256)
    assert file.begin()
    file._name(weight_file.UNFINISHED_VERSION)
    weight_file.fcntl.flock(file._file, weight_file.fcntl.LOCK_UN)  # as when the writer is killed
    with pytest.raises(WeightsGone):
        OpenedWeights(file.place(changes=True, version=4, address=ADDRESS))


def test_a_version_that_was_written_over_is_not_taken_for_another():
    versions = WeightVersions(changes=True)
    first, _, third = (written(versions, one(number), number) for number in range(3))
    assert (third.number, third.inode) == (first.number, first.inode)
    with pytest.raises(WeightsGone, match="version 2 of the weights is where version 0 was"):
        OpenedWeights(first)
    assert read(third)["one"].tolist() == [2.0] * 5


def test_what_is_read_is_not_written_over_and_its_memory_ends_with_its_reader():
    gc.collect()
    versions, before = WeightVersions(changes=True), memory_files()
    places = [written(versions, one(0), 0)]
    with OpenedWeights(places[0]) as tensors:
        for number in (1, 2, 3):
            places.append(written(versions, one(number), number))
            assert tensors["one"].tolist() == [0.0] * 5
        assert places[2].inode != places[0].inode
    del tensors
    gc.collect()
    assert [read(place)["one"][0].item() for place in places[2:]] == [2.0, 3.0]
    with pytest.raises(PeerError):
        OpenedWeights(places[0])
    versions.clear()
    gc.collect()
    assert memory_files() == before


def test_memory_is_used_again_by_turns_as_long_as_the_size_agrees():
    versions = WeightVersions(changes=True)
    inodes = [written(versions, one(number), number).inode for number in range(4)]
    assert inodes[0] == inodes[2] != inodes[1] == inodes[3]
    assert written(versions, one(5, count=500), 5).inode not in inodes


def test_a_version_that_fits_into_no_memory_of_its_process_is_an_error_of_the_peer():
    versions = WeightVersions(changes=True)
    place = written(versions, one(1), 1)
    versions.clear()
    with pytest.raises(PeerError, match=r"cannot read the memory of process|has released"):
        OpenedWeights(place)


LOOKING = """
import pickle, sys
from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights

while True:
    try:
        place = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        with OpenedWeights(place) as tensors:
            found = "whole" if bool((tensors["one"] == place.version).all()) else "torn"
    except PeerError:
        found = "gone"
    print(found, flush=True)
"""


def test_a_reader_beside_a_writer_never_sees_half_a_version():
    versions = WeightVersions(changes=True)
    reader = subprocess.Popen([sys.executable, "-c", LOOKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for number in range(400):  # none waits for the other
        reader.stdin.write(pickle.dumps(written(versions, one(number, count=100_000), number)))
        reader.stdin.flush()
    said = reader.communicate()[0].decode().split()
    assert len(said) == 400
    assert "torn" not in said
    assert said[-1] == "whole"


READER = """
import pickle, sys, time
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights
opened = OpenedWeights(pickle.load(sys.stdin.buffer))
print("open", flush=True)
time.sleep(600)
"""


def test_a_reader_that_is_killed_keeps_no_memory():
    versions = WeightVersions(changes=True)
    place = written(versions, one(0), 0)
    reader = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    reader.stdin.write(pickle.dumps(place))
    reader.stdin.close()
    assert reader.stdout.readline() == b"open\n"
    written(versions, one(1), 1)
    assert not versions._other.begin()
    reader.kill()
    reader.wait()
    reader.stdout.close()
    assert versions._other.begin()


def test_pages_are_locked_for_an_accelerator_and_used_as_they_are_where_they_cannot_be(monkeypatch):
    asked, answers = [], [0, 1]

    class Cuda:
        def cudaHostRegister(self, start, size, flags):
            asked.append((start, size, flags))
            return answers.pop(0)

        def cudaHostUnregister(self, start):
            asked.append(start)

    monkeypatch.setattr(torch.cuda, "cudart", Cuda)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    locked, refused = (WeightFile(1000, device=torch.device("cuda:3")) for _ in range(2))
    starts = [file._memory.data_ptr() for file in (locked, refused)]
    for file in (locked, refused):
        file.body.fill_(1)
        file.close()
    assert asked == [(starts[0], 1064, 1), (starts[1], 1064, 1), starts[0]]
    assert all(start % 4096 == 0 for start in starts)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_takes_the_memory_for_page_locked():
    file = WeightFile(1000, device=torch.device("cuda:0"))
    assert file.body.is_pinned()
    file.close()
