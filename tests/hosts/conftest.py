"""What tests of all hosts share."""

import os
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest


@pytest.fixture
def aside(tmp_path, monkeypatch):
    """A folder and variables that what a test prepares may change."""
    monkeypatch.chdir(tmp_path)
    before = os.environ.copy()
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def read_once(monkeypatch):
    """What is the same for all configs of a test that explains many: installed packages, and the parsed texts
    of interpolations, which OmegaConf parses again whenever it resolves one.
    """
    for module in ("entry_points", "plugin", "hosts.rlinf.replacements"):
        if not module.startswith("hosts.rlinf") or find_spec("rlinf"):
            monkeypatch.setattr(f"rlinf_async.{module}.entry_points", cache(entry_points))
    parse = cache(pytest.importorskip("omegaconf.grammar_parser").parse)
    for module in ("base", "_utils"):
        monkeypatch.setattr(f"omegaconf.{module}.parse", parse)
