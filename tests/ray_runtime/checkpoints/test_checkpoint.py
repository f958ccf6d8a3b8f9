import json
import os
from collections import Counter

import pytest

from rlinf_async.core.buffer import Ledger
from rlinf_async.ray_runtime.checkpoints.saved_buffer import STATE_FILE, read_ledger, write_ledger


@pytest.mark.parametrize("produced", [9, 14])
def test_books_are_read_as_they_were_written(tmp_path, produced):
    books = Ledger(produced=produced, trained=6, env_steps_trained=600, refused=Counter(stale=3))
    write_ledger(tmp_path, version=4, ledger=books)
    assert read_ledger(tmp_path) == books
    assert read_ledger(tmp_path).in_flight == produced - 9


def test_without_books_they_are_empty(tmp_path):
    assert read_ledger(tmp_path) == Ledger()


BOOKS = {"version": 1, "produced": 3, "trained": 1, "env_steps_trained": 10, "refused": {"stale": 1}}


@pytest.mark.parametrize("name", ["produced", "trained", "env_steps_trained", "refused"])
@pytest.mark.parametrize("value", [None, "3", -1, 2.5, True, [1], {"stale": "x"}])
def test_books_of_somebody_else_that_are_none_are_named(tmp_path, name, value):
    (tmp_path / STATE_FILE).write_text(json.dumps({**BOOKS, name: value}))
    with pytest.raises(ValueError, match=r"async_state\.json lacks counts of trajectories"):
        read_ledger(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[" * 10_000, "[]", "3", "{}"])
def test_books_that_are_damaged_are_named(tmp_path, text):
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(ValueError, match=r"async_state\.json .*go on from another checkpoint"):
        read_ledger(tmp_path)


def test_books_are_neither_read_through_a_link_nor_waited_for_at_a_pipe(tmp_path):
    (tmp_path / "elsewhere").write_text(json.dumps(BOOKS))
    (tmp_path / STATE_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="it is a symbolic link"):
        read_ledger(tmp_path)
    (tmp_path / STATE_FILE).unlink()
    os.mkfifo(tmp_path / STATE_FILE)
    with pytest.raises(ValueError, match="it is no file"):
        read_ledger(tmp_path)
