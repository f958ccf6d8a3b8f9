import os
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

from tests.lateness import WHY, is_too_late

# On a machine that is shared, slow is not a failure.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# Ray starts a cluster for whoever calls it without one: in a test, a thread that outlives what stood in for
# Ray. It reads this when it is imported; the runs that tests start are to have Ray as users have it.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
with suppress(ImportError):
    import ray  # noqa: F401
del os.environ["RAY_ENABLE_AUTO_CONNECT"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # What shared runs are asked about costs nothing: the runs themselves may be late.
    if item.get_closest_marker("shared_run") is None and is_too_late():
        pytest.skip(WHY)
