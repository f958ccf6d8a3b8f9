"""Python imports this when it starts: on `PYTHONPATH`, it makes models tiny in every process of a run.

Ray's own processes load it as well, and Ray gives up on one that is not ready in time: nothing heavy, torch
above all, may be imported here.
"""

from tests.vla import tiny_gr00t, tiny_openpi, tiny_openvla_oft  # noqa: F401
