import asyncio
import gc
import inspect
import os
import re
import signal
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings

from rlinf_async.lab.virtual.clock import run
from rlinf_async.ray_runtime.cluster.template import SWITCH_VARIABLE
from tests.checkouts import EMBODIED, TREES, configs
from tests.reading_once import read_once

read_once()

# On a machine that is shared, slow is not a failure. `make nightly` searches further.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", settings.get_profile("shared machine"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "shared machine"))

# A shell has the jobs in its background ignore interrupts; tests that send one are to see it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray starts a cluster for whoever calls it without one: in a test, a thread that outlives what stood in for
# Ray. It reads this when it is imported; the runs that tests start are to have Ray as users have it.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
with suppress(ImportError):
    import ray  # noqa: F401
del os.environ["RAY_ENABLE_AUTO_CONNECT"]


@pytest.fixture(autouse=True)
def signals_as_before():
    """A command that ends heeds no signal any more, which tests call in their own process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_template_of_workers(request, monkeypatch):
    """A command that never starts Ray would start a template of workers, and kill it."""
    if not _is_heavy(request.node):
        monkeypatch.setenv(SWITCH_VARIABLE, "0")


COLLECTED_DESCRIPTORS = 256
"""A quarter of those that a process may open by default."""
_left_open = 0


@pytest.fixture(autouse=True)
def few_descriptors():
    """Close what tests leave open: sockets of a loop refer to each other, and Python looks for such circles
    less and less in a process with many objects. Files that runs keep to their end stay open.
    """
    global _left_open
    yield
    if _open_descriptors() > _left_open + COLLECTED_DESCRIPTORS:
        gc.collect()
        _left_open = _open_descriptors()


def _open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=TREES)
def examples(request, monkeypatch):
    """The folder with RLinf's YAMLs, of each tree, where the pages say that it is."""
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    root = configs(request.param) / EMBODIED
    monkeypatch.setenv("EMBODIED_PATH", str(root))
    return root / "config"


HEAVY = re.compile(r"mark\.(ray|browser|render|libero|maniskill)\b")


def pytest_collection_modifyitems(items):
    """The Makefile finds files with heavy tests by their text: no such mark comes from elsewhere. The nightly
    tests are not found that way.
    """
    for path in {item.path for item in items if _is_heavy(item) and not item.get_closest_marker("nightly")}:
        if not HEAVY.search(path.read_text()):
            raise pytest.UsageError(
                f"{path} has a heavy test, but does not name its mark: see HEAVY_FILES in the Makefile"
            )


def _is_heavy(item):
    return any(HEAVY.match(f"mark.{mark.name}") for mark in item.iter_markers())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is `async def`: on a virtual clock, or on the machine's if it is marked `real_time`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runs = asyncio.run if pyfuncitem.get_closest_marker("real_time") else run
    runs(pyfuncitem.obj(**given))
    return True
