"""Tests of RLinf's host; without RLinf each module is skipped, which says why."""

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")
