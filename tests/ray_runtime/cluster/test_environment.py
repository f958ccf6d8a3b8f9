"""Which Ray cluster a run is in, where its files are, and who may join."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from ray._private.utils import validate_socket_filepath

from rlinf_async.doctor import machine
from rlinf_async.extras import check_interpreter
from rlinf_async.ray_runtime.cluster import environment
from rlinf_async.ray_runtime.cluster.environment import (
    LONGEST_FOLDER,
    MODE_VARIABLE,
    TOKEN_PATH_VARIABLE,
    TOKEN_VARIABLES,
    choose_cluster,
    logs_of_ray,
    misplaced_sockets,
    require_token,
)


@pytest.mark.parametrize(
    ("own", "join", "before", "after"),
    [
        (True, False, None, "local"),
        (True, False, "", "local"),
        (True, False, "auto", "auto"),
        (True, True, None, None),
        (True, True, "auto", "auto"),
        (False, False, None, None),
        (False, False, "local", "local"),
    ],
)
def test_a_run_has_a_cluster_of_its_own_where_it_can_unless_it_is_told_otherwise(own, join, before, after):
    environ = {} if before is None else {"RAY_ADDRESS": before}
    choose_cluster(own=own, join=join, environ=environ)
    assert environ.get("RAY_ADDRESS") == after


def test_a_cluster_that_is_named_has_to_answer():
    with pytest.raises(ValueError, match=r"nothing answers at RAY_ADDRESS=127\.0\.0\.1:1 "):
        choose_cluster(own=True, join=True, environ={"RAY_ADDRESS": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://127.0.0.1:1", r"nothing answers at RAY_ADDRESS=ray://127\.0\.0\.1:1 \("),
        ("127.0.0.1", r"RAY_ADDRESS=127\.0\.0\.1 is no address of a cluster"),
        ("127.0.0.1:", "is no address of a cluster"),
        ("nonsense", "is no address of a cluster"),
    ],
)
def test_an_address_of_no_cluster_is_refused_before_ray_tries_it(address, said):
    with pytest.raises(ValueError, match=said):
        choose_cluster(own=True, join=False, environ={"RAY_ADDRESS": address})


def test_joining_and_a_cluster_of_its_own_exclude_each_other():
    with pytest.raises(ValueError, match="unset RAY_ADDRESS"):
        choose_cluster(own=True, join=True, environ={"RAY_ADDRESS": "local"})


LONGEST_SESSION = "/ray/session_2026-11-27_02-21-43_123456_4194304/sockets/plasma_store"


def test_the_limit_is_rays_own() -> None:
    fits = "/tmp/".ljust(LONGEST_FOLDER, "x")
    validate_socket_filepath(fits + LONGEST_SESSION)
    assert misplaced_sockets({"TMPDIR": fits}) is None
    with pytest.raises(OSError, match="AF_UNIX path length"):
        validate_socket_filepath(f"{fits}x{LONGEST_SESSION}")
    assert f"where Ray's sockets leave room for {LONGEST_FOLDER}" in str(
        misplaced_sockets({"TMPDIR": fits + "x"})
    )


def test_a_folder_that_this_account_cannot_write_is_refused(tmp_path: Path, monkeypatch) -> None:
    def access(path: os.PathLike[str], mode: int) -> bool:
        return not tmp_path.is_relative_to(path)

    monkeypatch.setattr(environment, "LONGEST_FOLDER", 1000)
    monkeypatch.setattr(os, "access", access)
    for folder in (tmp_path, tmp_path / "made" / "by" / "ray"):
        with pytest.raises(ValueError, match=r"cannot be written by this account.*export RAY_TMPDIR=/tmp"):
            choose_cluster(own=True, join=False, environ={"TMPDIR": f"{folder}"})


def test_a_folder_that_this_account_cannot_even_look_into_is_refused() -> None:
    account = os.getuid()
    with TemporaryDirectory(dir="/tmp") as closed:
        os.chmod(closed, 0o700 if account == 0 else 0)
        try:
            os.setresuid(account or 65534, account or 65534, account)  # root may look into every folder
            why = misplaced_sockets({"RAY_TMPDIR": f"{closed}/ray"})
        finally:
            os.setresuid(account, account, account)
            os.chmod(closed, 0o700)
    assert why == f"RAY_TMPDIR={closed}/ray cannot be written by this account, and Ray puts its files there"


def test_a_full_disk_under_rays_folder_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(environment, "LONGEST_FOLDER", 1000)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    with pytest.raises(ValueError, match=r"has room for 4096 bytes, and Ray.*export RAY_TMPDIR=/tmp"):
        choose_cluster(own=True, join=False, environ={"TMPDIR": f"{tmp_path / 'made by ray'}"})


def test_a_python_without_docstrings_is_refused_before_ray_is_imported() -> None:
    with pytest.raises(ValueError, match=r"unset PYTHONOPTIMIZE$"):
        check_interpreter(2)
    check_interpreter(1)
    done = subprocess.run(
        [sys.executable, "-OO", "-c", "import ray.util.state"], capture_output=True, text=True, timeout=120
    )
    assert "state.__doc__ +=" in done.stderr


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
@pytest.mark.parametrize("folder", ["/" + "x" * 130, "/tmp/caf\u00e9"])
def test_a_run_that_would_start_ray_there_is_refused_with_what_to_set(variable: str, folder: str) -> None:
    with pytest.raises(ValueError, match="export RAY_TMPDIR=/tmp") as refused:
        choose_cluster(own=True, join=False, environ={variable: folder})
    assert f"{variable}={folder}" in str(refused.value)
    assert machine.check_sockets({variable: folder}).status == "fail"
    choose_cluster(own=True, join=False, environ={variable: folder, "RAY_TMPDIR": "/tmp"})


def test_a_run_that_joins_a_cluster_needs_no_folder() -> None:
    choose_cluster(own=False, join=True, environ={"TMPDIR": "/" + "x" * 130})


@pytest.fixture(autouse=True)
def reread(monkeypatch):
    """The Ray of this process stays as it is."""
    monkeypatch.setattr(environment, "_reread", lambda: None)


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
    monkeypatch.setattr(environment, "AUTH_MODULE", "ray._private.no_such_module")
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
from rlinf_async.ray_runtime.cluster.environment import require_token
assert require_token(os.environ)
assert get_authentication_mode() == AuthenticationMode.TOKEN
token = open(os.environ["RAY_AUTH_TOKEN_PATH"]).read()
assert token in str(loader.get_token_for_http_header())
"""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    environ = {name: value for name, value in os.environ.items() if name not in TOKEN_VARIABLES}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environ, "HOME": str(tmp_path)})


def test_the_logs_of_a_joined_cluster_are_said_to_be_on_its_nodes():
    assert logs_of_ray({"RAY_ADDRESS": "local", "RAY_TMPDIR": "/fast"}) == "/fast/ray/session_latest/logs"
    for environ in ({"RAY_ADDRESS": "10.0.0.1:6379", "RAY_TMPDIR": "/fast"}, {"TMPDIR": "/fast"}):
        assert "on its node" in logs_of_ray(environ)
        assert "/fast" not in logs_of_ray(environ)
