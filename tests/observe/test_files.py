"""Files that a run reads and writes where others may have prepared them: the cost of reading, and bounds."""

import errno
import json
import os
import stat
import tracemalloc

import pytest

from rlinf_async.observe import files
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.read_files import lines_in, read_regular
from rlinf_async.observe.reading.faults import FaultReader, count_faults
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir

MEGABYTE = 1 << 20


def peak_bytes(call):
    """The most memory that `call` had allocated at one moment, and its result."""
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def fault_lines(count, *, text="x"):
    fault = {"time": 1e9, "process": "env worker 0", "what": "env failed", "error": text, "seconds": 0.5}
    return (json.dumps(fault) + "\n") * count


@pytest.mark.parametrize("size", [0, 3, 4096, 100_000])
def test_reading_a_file_costs_its_size_and_not_its_limit(tmp_path, size):
    path, content = tmp_path / "file", os.urandom(size)
    path.write_bytes(content)
    peak, read = peak_bytes(lambda: read_regular(path, limit=512 * MEGABYTE))
    assert read == content
    # One copy of what was read may be cut, and the reader has a buffer of some kilobytes.
    assert peak < 3 * size + 200_000


def test_metrics_of_three_bytes_cost_no_memory(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    peak, steps = peak_bytes(RunReader(tmp_path).metrics)
    assert steps == []
    assert peak < MEGABYTE


def test_a_file_of_its_limit_is_read_and_one_byte_more_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_regular(path, limit=100) == b"x" * 100
    with pytest.raises(OSError, match="more than 99 bytes"):
        read_regular(path, limit=99)


def test_lines_that_are_too_long_are_left_out_and_the_others_are_not(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + b"x" * 35 + b"\nb\n\n" + b"y" * 10 + b"\nc")
    assert list(lines_in(path, limit=1000, longest=10)) == [b"a", b"b", b"", b"y" * 10, b"c"]
    path.write_bytes(b"x" * 35)
    assert list(lines_in(path, limit=1000, longest=10)) == []


def test_counting_a_large_record_needs_the_memory_of_a_line(tmp_path):
    (tmp_path / "failures.jsonl").write_text(fault_lines(2_000, text="x" * 5_000))
    peak, counts = peak_bytes(lambda: count_faults(tmp_path))
    assert counts.kinds == {"env failed": 2_000}
    assert counts.seconds == 1_000.0
    assert peak < MEGABYTE


def test_a_reader_of_new_faults_passes_a_large_older_record_in_pieces(tmp_path):
    file = tmp_path / "failures.jsonl"
    file.write_text(fault_lines(2_000, text="x" * 5_000) + "z" * (3 * MEGABYTE) + "\n")
    reader = FaultReader(tmp_path)
    RunDir(tmp_path).record(Fault(process="env worker 1", what="silent", error="e", action="a", shard=7))
    peak, new = peak_bytes(reader.new)
    assert [fault.shard for fault in new] == [7]
    assert peak < 16 * MEGABYTE
    assert reader.new() == []


def test_a_directory_is_made_with_its_name_on_the_disk_and_those_of_all_that_were_missing(
    tmp_path, monkeypatch
):
    flushed = []
    monkeypatch.setattr(files, "sync", flushed.append)
    make_directory(tmp_path / "run" / "checkpoints" / "new")
    assert set(flushed) == {tmp_path, tmp_path / "run", tmp_path / "run" / "checkpoints"}
    flushed.clear()
    make_directory(tmp_path / "run" / "checkpoints")
    assert flushed == []


def test_a_directory_whose_name_could_not_be_flushed_is_made_again_the_next_time(tmp_path, monkeypatch):
    real, full, flushed = files.sync, [True], []

    def sync(directory):
        flushed.append(directory)
        if full and directory == tmp_path / "run":
            full.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(directory)

    monkeypatch.setattr(files, "sync", sync)
    with pytest.raises(OSError, match="No space left"):
        make_directory(tmp_path / "run" / "checkpoints")
    flushed.clear()
    make_directory(tmp_path / "run" / "checkpoints")
    assert flushed == [tmp_path / "run"]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o700), (False, 0o777)])
def test_a_directory_has_the_mode_of_its_kind(tmp_path, private, mode):
    make_directory(tmp_path / "new", private=private)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode & ~umask
