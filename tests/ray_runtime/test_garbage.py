"""What a process holds when a run begins is left out of later searches for garbage."""

import asyncio
import gc
import weakref

import pytest

from rlinf_async.ray_runtime.garbage import exempt_present_objects
from rlinf_async.ray_runtime.inspection import Inspectable


@pytest.fixture(autouse=True)
def nothing_is_kept():
    """Before, as other tests have workers join runs, and after."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()


class Node:
    """Refers to itself: only a search for garbage finds that nobody else does."""

    def __init__(self):
        self.self = self


def dropped():
    """A node that nobody holds."""
    return weakref.ref(Node())


def test_a_process_that_joins_a_run_is_searched_no_more(tmp_path):
    assert gc.get_freeze_count() == 0
    held = Node()
    asyncio.run(Inspectable().join_run("env worker 0", str(tmp_path)))
    assert gc.get_freeze_count() > 10_000
    assert not any(each is held for each in gc.get_objects())


def test_garbage_is_not_kept_and_what_comes_later_is_searched():
    gc.disable()
    try:
        before = dropped()
        exempt_present_objects()
        after = dropped()
        assert before() is None
        assert after() is not None
        gc.collect()
        assert after() is None
    finally:
        gc.enable()


def test_what_an_earlier_run_has_left_is_found_by_the_next():
    left = Node()
    gone = weakref.ref(left)
    exempt_present_objects()
    del left
    gc.collect()
    assert gone() is not None
    exempt_present_objects()
    assert gone() is None
