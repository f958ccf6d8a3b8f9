import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rlinf_async.observe.claim import ClaimedError, claim_directory, next_free

HOLDING = """
import sys
from pathlib import Path
from rlinf_async.observe.claim import claim_directory

claim_directory(Path(sys.argv[1]), key="some.key")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path):
    """A directory that another process has claimed, and that process."""
    directory = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDING), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield directory, process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_with_another_place(held):
    directory, process = held
    with pytest.raises(ClaimedError, match=rf"process {process.pid}\); .* some.key={directory}-2"):
        claim_directory(directory, key="some.key")


def test_when_the_other_is_killed_the_directory_is_free(held):
    directory, process = held
    process.kill()
    process.wait()
    claim_directory(directory, key="some.key")
    claim_directory(directory / ".." / directory.name, key="some.key")  # the same process again


def test_where_nothing_can_be_written_it_is_said_with_the_key(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r" \(some\.key\) cannot be written: Not a directory"):
        claim_directory(tmp_path / "file" / "run", key="some.key")


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "work").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "work")
    with pytest.raises(ValueError, match=r"run \(the\.key\) cannot be written: .*\.lock is a symbolic link"):
        claim_directory(tmp_path / "run", key="the.key")
    assert (tmp_path / "work").read_text() == "mine"


def test_the_next_free_name_is_one_that_is_not_there(tmp_path):
    (tmp_path / "run-2").mkdir()
    assert next_free(tmp_path / "run") == tmp_path / "run-3"
