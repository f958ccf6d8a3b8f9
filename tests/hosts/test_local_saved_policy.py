"""The file with the weights of a run of the local host, also where there is no room for it."""

import errno
import os
import stat
from contextlib import nullcontext

import pytest
import torch

from rlinf_async.hosts.local.train import save_policy
from rlinf_async.observe import files

WEIGHTS = {"actor.weight": torch.arange(6.0).reshape(2, 3)}


@pytest.fixture
def full(monkeypatch):
    """A disk that is full for as many writes as are in the list; half of a file is there by then."""
    failures, write = [], files._write

    def fails(number, content):
        write(number, bytes(content)[: len(content) // 2] if failures else content)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(files, "_write", fails)
    return failures


def no_room():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_weights_are_read_as_they_were(tmp_path):
    save_policy(WEIGHTS, tmp_path / "policy.pt", tries=1, say=pytest.fail)
    assert torch.equal(torch.load(tmp_path / "policy.pt")["actor.weight"], WEIGHTS["actor.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_a_disk_that_is_full_for_a_while_is_said_and_waited_for(tmp_path, full):
    said, waits = [], []
    full += [no_room(), no_room()]
    save_policy(WEIGHTS, tmp_path / "policy.pt", tries=3, say=said.append, wait=waits.append)
    assert waits == [10.0, 20.0]
    place = tmp_path / "policy.pt"
    assert (
        said[0] == f"{place} cannot be written: No space left on device; it is tried again in 10 s (2 more)"
    )
    assert torch.load(place).keys() == WEIGHTS.keys()


def test_a_disk_that_stays_full_is_named_and_what_was_there_is_whole(tmp_path, full):
    place = tmp_path / "policy.pt"
    place.write_bytes(b"that of a run before")
    full += [no_room(), no_room()]
    with pytest.raises(OSError, match=f"^{place} cannot be written: No space left on device; what the run"):
        save_policy(WEIGHTS, place, tries=2, say=lambda text: None, wait=lambda seconds: None)
    assert place.read_bytes() == b"that of a run before"
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_weights_are_private_and_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    order, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: order.append(kind(number)) or fsync(number))
    monkeypatch.setattr(os, "replace", lambda old, new: order.append("name") or replace(old, new))
    save_policy(WEIGHTS, tmp_path / "policy.pt", tries=1, say=pytest.fail)
    assert order == ["file", "name", "folder"]
    assert stat.S_IMODE((tmp_path / "policy.pt").stat().st_mode) == 0o600


def kind(number):
    return "folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file"


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("policy.pt", pytest.raises(OSError, match="it is a symbolic link")),
        ("policy.half", nullcontext()),
        (".policy.pt.half", nullcontext()),
    ],
)
def test_weights_are_not_written_through_a_link(tmp_path, name, refusal):
    other = tmp_path / "another's"
    other.write_text("as it was")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(other)
    with refusal:
        save_policy(WEIGHTS, run / "policy.pt", tries=1, say=pytest.fail)
    assert other.read_text() == "as it was"
