"""Fixtures of real runs."""

from tests.runs.conftest import gl, runs  # noqa: F401
