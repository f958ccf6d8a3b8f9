"""A checkpoint is whole or absent, whatever is killed, cut off or removed, and whatever a clock says."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import (
    LIST_FILE,
    Newest,
    find_newest,
    problem_of,
    prune,
    step_of,
    tidy,
    written_aside,
)

FILES = {"actor/weights.pt": (1 << 18) + 1, "actor/dcp/.metadata": 40, "async_state.json": 12}


def save(parent: Path, step: int, content: bytes = b"x") -> Path:
    folder = parent / f"global_step_{step}"
    with written_aside(folder, {"max_staleness": 1}) as aside:
        for name, size in FILES.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).write_bytes(content * size)
    return folder


def save_half(folder: Path) -> None:
    with written_aside(folder, {}) as aside:
        (aside / "weights").write_bytes(b"half")
        raise OSError("no space left on device")


def test_a_folder_has_its_name_only_when_all_of_it_is_there(tmp_path):
    folder = tmp_path / "global_step_3"
    with written_aside(folder, {}) as aside:
        (aside / "weights").write_bytes(b"1234")
        assert not folder.exists()
    assert problem_of(folder) is None
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_3"]
    listed = json.loads((folder / LIST_FILE).read_text())
    assert (listed["step"], listed["files"]["weights"]["bytes"]) == (3, 4)


def test_after_an_error_nothing_is_left_and_the_one_before_is_as_it_was(tmp_path):
    save(tmp_path, 1)
    for step in (1, 2):
        with pytest.raises(OSError, match="no space"):
            save_half(tmp_path / f"global_step_{step}")
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
    assert find_newest(tmp_path).step == 1


def test_of_the_same_step_the_newer_stays(tmp_path):
    save(tmp_path, 1)
    folder = save(tmp_path, 1, b"y")
    assert (folder / "async_state.json").read_bytes() == b"y" * 12
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]


def test_the_newest_is_the_one_that_was_written_last_not_the_one_with_the_highest_step(tmp_path):
    save(tmp_path, 60)
    again = save(tmp_path, 50)  # a run that has gone on from step 40
    assert find_newest(tmp_path) == Newest(again, 50, ())


@pytest.mark.parametrize("name", [*FILES, LIST_FILE])
@pytest.mark.parametrize("damage", ["removed", "cut off", "changed"])
def test_a_checkpoint_with_a_file_that_is_not_as_written_is_named_and_the_one_before_is_found(
    tmp_path, name, damage
):
    whole, broken = save(tmp_path, 1), save(tmp_path, 2)
    file = broken / name
    if damage == "removed":
        file.unlink()
    elif damage == "cut off":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        file.write_bytes(b"?" * file.stat().st_size)
    assert problem_of(broken) is not None
    newest = find_newest(tmp_path)
    assert (newest.folder, newest.step) == (whole, 1)
    # Without a list it may be another's, of a framework that makes none.
    named = (damage, name) != ("removed", LIST_FILE)
    assert [str(broken) in sentence for sentence in newest.skipped] == [True] * named


def test_a_list_of_another_format_is_not_trusted(tmp_path):
    folder = save(tmp_path, 1)
    listed = json.loads((folder / LIST_FILE).read_text())
    (folder / LIST_FILE).write_text(json.dumps({**listed, "format": 3}))
    assert "format 3" in (problem_of(folder) or "")


def test_a_byte_that_has_changed_anywhere_is_found(tmp_path):
    folder = save(tmp_path, 1)
    places = [(name, place) for name, size in FILES.items() for place in (0, size // 2, size - 1)]
    places += [(LIST_FILE, place) for place in range((folder / LIST_FILE).stat().st_size)]
    for name, place in places:
        file = folder / name
        content = file.read_bytes()
        for bit in (1 << place % 8, 128):
            changed = bytearray(content)
            changed[place] ^= bit
            file.write_bytes(changed)
            assert problem_of(folder) is not None, (name, place, bit)
        file.write_bytes(content)
    assert problem_of(folder) is None


OTHER_SHAPES = [
    *(
        "",
        "[]",
        "null",
        "7",
        '{"files": {}}',
        '{"format": 2, "files": []}',
        '{"format": 2, "files": {"a": 1}}',
    ),
    *('{"format": 2, "files": {"a": {}}}', '{"format": 2, "files": {"../x": {"bytes": 1}}}', "[" * 100_000),
    '{"format": 2, "files": {"a": {"bytes": "1"}}}',
    '{"format": 2, "sequence": "3", "files": {"a": {"bytes": 1, "sha256": ""}}}',
    '{"format": [2], "sequence": 1e400, "files": {"a": null}}',
    '{"format": 2, "files": {"a": {"bytes": 1, "sha256": null}}, "sequence": 9}',
]


@pytest.mark.parametrize("text", OTHER_SHAPES, ids=range(len(OTHER_SHAPES)))
def test_a_list_of_another_shape_makes_a_checkpoint_that_is_not_whole(tmp_path, text):
    whole, other = save(tmp_path, 1), save(tmp_path, 2)
    (other / LIST_FILE).write_text(text)
    assert problem_of(other) is not None
    assert find_newest(tmp_path).folder == whole
    assert prune(tmp_path, 1) == []
    assert find_newest(save(tmp_path, 3).parent).step == 3


@pytest.mark.parametrize(
    "clock",
    [
        pytest.param([1000.0, 900.0, 800.0, 700.0], id="goes back"),
        pytest.param([1000.0, 9e9, 1001.0, 1002.0], id="jumps ahead and back"),
        pytest.param([1000.0] * 4, id="stands still"),
    ],
)
def test_the_order_is_that_of_writing_whatever_the_clock_says(tmp_path, monkeypatch, clock):
    for step, now in zip((40, 10, 30, 20), clock, strict=True):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        folder = save(tmp_path, step)
        os.utime(folder / LIST_FILE, (now, now))
        assert find_newest(tmp_path) == Newest(folder, step, ())
    assert [folder.name for folder in prune(tmp_path, 2)] == ["global_step_40", "global_step_10"]
    assert find_newest(tmp_path).step == 20


def test_before_an_older_one_goes_those_that_stay_are_read(tmp_path):
    first, second, third = (save(tmp_path, step) for step in (1, 2, 3))
    (third / "actor" / "weights.pt").write_bytes(b"y" * FILES["actor/weights.pt"])
    assert prune(tmp_path, 1) == [first]
    assert find_newest(tmp_path).folder == second


def save_and_prune(parent: Path) -> OSError | None:
    try:
        for step in (1, 2):
            save(parent, step)
            prune(parent, 1)
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize(("number", "for_good"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_a_disk_that_fails_at_any_call_leaves_a_whole_one(tmp_path, monkeypatch, number, for_good):
    failures = 0
    for deadly in range(1, 200):
        parent = tmp_path / str(deadly)
        save(parent, 1)
        calls = 0

        def failing(real, deadly=deadly):
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls == deadly or (for_good and calls > deadly):
                    raise OSError(number, os.strerror(number))
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "rename", "mkdir", "write"):
                patch.setattr(os, name, failing(getattr(os, name)))
            error = save_and_prune(parent)
        if calls < deadly:
            break
        failures += error is not None and error.errno == number
        if for_good:
            tidy(parent)
        assert find_newest(parent).folder is not None, deadly
        assert {problem_of(folder) for folder in parent.glob("global_step_*")} == {None}
    assert failures > 10


def test_nothing_is_found_where_there_is_nothing(tmp_path):
    assert find_newest(tmp_path / "nowhere") == Newest(None, 0, ())
    (tmp_path / "global_step_7" / "actor").mkdir(parents=True)
    assert find_newest(tmp_path) == Newest(None, 0, ())


def test_the_oldest_whole_ones_are_removed_and_broken_ones_stay(tmp_path):
    folders = [save(tmp_path, step) for step in (1, 2, 3, 4)]
    (folders[2] / "async_state.json").unlink()
    assert prune(tmp_path, "all") == []
    assert prune(tmp_path, 2) == [folders[0]]
    assert prune(tmp_path, 1, written={folders[3]}) == [folders[1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_3", "global_step_4"]


def test_what_a_killed_process_has_left_is_tidied(tmp_path):
    whole = save(tmp_path, 1)
    (tmp_path / ".global_step_2.writing").mkdir()
    (tmp_path / ".global_step_3.removing").mkdir()
    (tmp_path / ".global_step_1.replaced").mkdir()
    (tmp_path / ".mine").mkdir()
    tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine", "global_step_1"]
    # Killed between the two renames, the checkpoint that was to be replaced is the whole one.
    whole.rename(tmp_path / ".global_step_1.replaced")
    tidy(tmp_path)
    assert find_newest(tmp_path).folder == whole
    tidy(tmp_path / "nowhere")


@pytest.mark.parametrize(("name", "step"), [("global_step_12", 12), ("global_step_x", None), ("12", None)])
def test_the_step_is_in_the_name(name, step):
    assert step_of(Path("/runs", name)) == step


SAVING = """
import os, sys
from pathlib import Path
import rlinf_async.ray_runtime.checkpoints.checkpoint_folder as folders

def save(parent, *steps):
    for step in steps:
        with folders.written_aside(parent / f"global_step_{step}", {}) as aside:
            (aside / "actor").mkdir()
            (aside / "actor" / "weights").write_bytes(bytes([step]) * 2_000)
            (aside / "state.json").write_bytes(b"{}")
        folders.prune(parent, 1)

def die_at(deadly):
    calls = iter(range(1, 200))
    def counted(function):
        def call(*args, **kwargs):
            if next(calls) == deadly:
                os.kill(os.getpid(), 9)
            return function(*args, **kwargs)
        return call
    for name in ("fsync", "replace", "mkdir", "rename", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    Path.write_bytes = counted(Path.write_bytes)

status = None
for deadly in range(1, 200):
    child = os.fork()
    if child == 0:
        parent = Path(sys.argv[1], str(deadly))
        save(parent, 1)
        die_at(deadly)
        save(parent, 2, 2, 3)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, flush=True)
    if status == 0:
        break
"""


def test_killed_at_every_call_that_changes_the_disk_there_is_always_a_whole_checkpoint(tmp_path):
    command = [sys.executable, "-c", SAVING, str(tmp_path)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    *deaths, last = map(int, said.split())
    assert last == 0
    assert set(deaths) == {-signal.SIGKILL}
    assert len(deaths) > 30
    for deadly in range(1, len(deaths) + 1):
        parent = tmp_path / str(deadly)
        tidy(parent)
        newest = find_newest(parent)
        assert newest.folder is not None
        assert {problem_of(folder) for folder in parent.glob("global_step_*")} == {None}
        assert not [path for path in parent.iterdir() if path.name.startswith(".")]
