"""A folder in which Ray cannot make its sockets is refused before Ray starts, at exactly Ray's own limit."""

import pytest
from ray._private.utils import validate_socket_filepath

from rlinf_async.doctor import machine
from rlinf_async.ray_runtime.address import choose_cluster
from rlinf_async.ray_runtime.sockets import LONGEST_FOLDER, misplaced_sockets

LONGEST_SESSION = "/ray/session_2026-11-27_02-21-43_123456_4194304/sockets/plasma_store"


def test_the_limit_is_rays_own() -> None:
    fits = "/" + "x" * (LONGEST_FOLDER - 1)
    validate_socket_filepath(fits + LONGEST_SESSION)
    assert misplaced_sockets({"TMPDIR": fits}) is None
    with pytest.raises(OSError, match="AF_UNIX path length"):
        validate_socket_filepath(f"{fits}x{LONGEST_SESSION}")
    assert f"where Ray's sockets leave room for {LONGEST_FOLDER}" in str(
        misplaced_sockets({"TMPDIR": fits + "x"})
    )


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
