"""Tests of the veRL host beside veRL, which trains on CPU cores."""

import os

import pytest

# veRL looks for its platform once, when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")
pytest.importorskip("verl", reason="veRL is not installed")
