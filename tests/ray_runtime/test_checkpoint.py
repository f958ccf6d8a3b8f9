from collections import Counter

import pytest

from rlinf_async.core.buffer import Ledger
from rlinf_async.ray_runtime.checkpoint import read_ledger, write_ledger


@pytest.mark.parametrize("produced", [9, 14])
def test_books_are_read_as_they_were_written(tmp_path, produced):
    books = Ledger(produced=produced, trained=6, env_steps_trained=600, refused=Counter(stale=3))
    write_ledger(tmp_path, version=4, ledger=books)
    assert read_ledger(tmp_path) == books
    assert read_ledger(tmp_path).in_flight == produced - 9


def test_without_books_they_are_empty(tmp_path):
    assert read_ledger(tmp_path) == Ledger()
