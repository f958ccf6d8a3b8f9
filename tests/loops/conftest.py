import threading

import pytest


@pytest.fixture
def held():
    """Whoever waits for it is let go when the test ends."""
    event = threading.Event()
    yield event
    event.set()
