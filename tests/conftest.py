from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# On a machine that is shared, slow is not a failure.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

RUNS = "tests/runs/"
"""Tests that start Ray clusters, each with more processes than there are cores."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `pytest -n` shares the tests: file by file, and all real runs in turn in one process."""
    from xdist.scheduler import LoadScopeScheduling

    class RunsApart(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return RUNS if nodeid.startswith(RUNS) else nodeid.partition("::")[0]

    return RunsApart(config, log)
