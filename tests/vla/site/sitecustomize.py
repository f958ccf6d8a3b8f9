"""Python imports this when it starts: on `PYTHONPATH`, it makes pi0 tiny in every process of a run."""

from tests.vla import tiny_openpi  # noqa: F401
