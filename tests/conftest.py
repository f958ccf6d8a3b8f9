import os
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

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
def pytest_runtest_setup() -> None:
    """Leave out what would begin after `TESTS_BEGIN_UNTIL`, in seconds since the epoch; see .ci/run."""
    until = os.environ.get("TESTS_BEGIN_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("no time was left to begin it (TESTS_BEGIN_UNTIL): this machine is slow")
