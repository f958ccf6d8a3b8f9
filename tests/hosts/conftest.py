"""What tests of all hosts share."""

import os

import pytest


@pytest.fixture
def aside(tmp_path, monkeypatch):
    """A folder and variables that what a test prepares may change."""
    monkeypatch.chdir(tmp_path)
    before = os.environ.copy()
    yield
    os.environ.clear()
    os.environ.update(before)
