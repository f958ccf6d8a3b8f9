"""Access to a cluster that a run starts."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.ray_runtime import access
from rlinf_async.ray_runtime.access import MODE_VARIABLE, TOKEN_PATH_VARIABLE, TOKEN_VARIABLES, require_token


@pytest.fixture(autouse=True)
def reread(monkeypatch):
    """The Ray of this process stays as it is."""
    monkeypatch.setattr(access, "_reread", lambda: None)


def test_a_token_is_fresh_and_lies_in_memory_that_only_its_owner_reads():
    first, second = {}, {}
    assert require_token(first)
    assert require_token(second)
    assert first[MODE_VARIABLE] == "token"
    assert Path(first[TOKEN_PATH_VARIABLE]).read_text() != Path(second[TOKEN_PATH_VARIABLE]).read_text()
    assert len(bytes.fromhex(Path(first[TOKEN_PATH_VARIABLE]).read_text())) == 32
    assert stat.S_IMODE(os.stat(first[TOKEN_PATH_VARIABLE]).st_mode) == 0o600
    assert os.readlink(first[TOKEN_PATH_VARIABLE]).startswith("/memfd:")
    assert not any(Path(first[TOKEN_PATH_VARIABLE]).read_text() in value for value in first.values())


@pytest.mark.parametrize("name", TOKEN_VARIABLES)
@pytest.mark.parametrize("value", ["", "disabled", "token"])
def test_what_the_user_has_chosen_stays(name, value):
    environ = {name: value}
    assert not require_token(environ)
    assert environ == {name: value}


def test_a_ray_without_tokens_is_started_as_ever(monkeypatch):
    monkeypatch.setattr(access, "AUTH_MODULE", "ray._private.no_such_module")
    environ = {}
    assert not require_token(environ)
    assert environ == {}


def test_with_a_dashboard_the_token_is_the_one_that_ray_shows():
    environ = {}
    assert require_token(environ, shared=True)
    assert environ == {MODE_VARIABLE: "token"}


def test_ray_asks_for_the_token_though_it_has_looked_for_one_before(tmp_path):
    code = """
import os
from ray._raylet import AuthenticationMode, AuthenticationTokenLoader, get_authentication_mode
assert get_authentication_mode() != AuthenticationMode.TOKEN
loader = AuthenticationTokenLoader.instance()
loader.has_token(ignore_auth_mode=True)
from rlinf_async.ray_runtime.access import require_token
assert require_token(os.environ)
assert get_authentication_mode() == AuthenticationMode.TOKEN
token = open(os.environ["RAY_AUTH_TOKEN_PATH"]).read()
assert token in str(loader.get_token_for_http_header())
"""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    environ = {name: value for name, value in os.environ.items() if name not in TOKEN_VARIABLES}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environ, "HOME": str(tmp_path)})
