"""Fixtures of real models and of real runs."""

import pytest

from tests.runs.conftest import gl, runs  # noqa: F401
from tests.vla.cases import CASES
from tests.vla.families import FAMILIES


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def family(request):
    """A family of models, tiny and random, whose packages are installed."""
    if request.param.missing:
        pytest.skip(request.param.missing)
    return request.param


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    """A model class whose packages are installed."""
    if request.param.missing:
        pytest.skip(request.param.missing)
    return request.param
