"""The hosts that a sentence is about, each as a context manager that takes a class of environments."""

from functools import partial

import pytest

from tests.conformance.hosts import HOSTS, SEEN_WHOLE, SELF_RESETTING, host_or_skip


@pytest.fixture(params=HOSTS)
def host(request):
    return host_or_skip(request.param)


@pytest.fixture(params=SELF_RESETTING)
def resetting_host(request):
    """Its environments reset themselves."""
    return partial(host_or_skip(request.param), auto_reset=True)


@pytest.fixture(params=[*HOSTS, *(f"{name} auto_reset" for name in SELF_RESETTING)])
def any_host(request):
    """It resets its environments, or they reset themselves."""
    name, *itself = request.param.split()
    return partial(host_or_skip(name), auto_reset=bool(itself))


@pytest.fixture(params=SEEN_WHOLE)
def showing_host(request):
    """Its policies are shown all fields, and not those alone that RLinf knows."""
    return host_or_skip(request.param)
