"""Python imports this when it starts: on `PYTHONPATH`, it makes models tiny in every process of a run."""

from tests.vla import tiny_gr00t, tiny_openpi, tiny_openvla_oft  # noqa: F401
