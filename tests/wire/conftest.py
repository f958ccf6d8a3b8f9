"""What all tests of the wire have in common."""

import pytest

from rlinf_async.wire.strangers import STRANGERS


@pytest.fixture(autouse=True)
def strangers_of_this_test(monkeypatch):
    """A process that joins a run records every stranger that was noted before it joined: those of these tests
    would be recorded in the runs of other tests."""
    monkeypatch.setattr(STRANGERS, "_refused", {})
    monkeypatch.setattr(STRANGERS, "_record", None)
