"""What the doctor says of a machine that is one of several nodes."""

import re
from pathlib import Path

import pytest

from rlinf_async.doctor import nodes
from rlinf_async.doctor.nodes import SILENCE_VARIABLES, check_nodes

ROUTES = "Iface\tDestination\tGateway\neth7\t000200C0\t00000000\neth1\t00000000\t010200C0\n"
FIRST = {"RLINF_NODE_RANK": "0", **SILENCE_VARIABLES}
SECOND = {"RLINF_NODE_RANK": "1"}


@pytest.fixture
def check(tmp_path):
    (tmp_path / "net" / "eth1").mkdir(parents=True)
    (tmp_path / "route").write_text(ROUTES)
    (tmp_path / "token").write_text("secret")

    def checked(environ, *, address="10.0.0.2", token="token"):
        return check_nodes(
            environ,
            address=lambda: address,
            token=tmp_path / token,
            interfaces=tmp_path / "net",
            routes=tmp_path / "route",
        )

    return checked


def test_a_machine_of_its_own_is_not_asked(check):
    assert check({}).status == "skip"
    assert "RLINF_NODE_RANK" in check({}).detail


@pytest.mark.parametrize("environ", [FIRST, SECOND])
def test_a_node_that_has_all_is_fine(check, environ):
    assert check(environ).status == "ok"


@pytest.mark.parametrize("address", ["127.0.1.1", ""])
def test_a_name_that_others_do_not_reach_needs_the_interface_of_the_default_route(check, address):
    found = check(SECOND, address=address)
    assert found.status == "warn"
    assert found.mend == "before ray start: export GLOO_SOCKET_IFNAME=eth1"
    assert check({**SECOND, "GLOO_SOCKET_IFNAME": "eth1"}, address=address).status == "ok"


def test_an_interface_that_is_not_there_fails(check):
    found = check({**SECOND, "GLOO_SOCKET_IFNAME": "eth0"})
    assert (found.status, found.detail) == ("fail", "GLOO_SOCKET_IFNAME=eth0 is no interface here")


def test_a_node_without_a_token_is_told_where_it_belongs(check, tmp_path):
    found = check(SECOND, token="none")
    assert found.status == "warn"
    assert f"the same {tmp_path / 'none'} on every other" in found.mend
    for fine in (
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_TOKEN": "secret"},
        {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")},
    ):
        assert check({**SECOND, **fine}, token="none").status == "ok"
    assert check({**SECOND, "RAY_AUTH_MODE": "token"}, token="none").status == "warn"


def test_the_first_node_is_told_how_it_misses_a_silent_one_sooner(check):
    found = check({"RLINF_NODE_RANK": "0"})
    assert found.status == "warn"
    page = Path("docs/install.md").read_text()
    (line,) = re.findall(r"export RAY_health.*", page)
    assert found.mend == f"before ray start: {line}"
    threshold = {"RAY_health_check_failure_threshold": "3"}
    assert check({"RLINF_NODE_RANK": "0", **threshold}).mend.endswith(
        "export RAY_health_check_timeout_ms=2000"
    )


def test_all_that_is_missing_is_said_at_once(check):
    found = check({"RLINF_NODE_RANK": "0"}, address="127.0.0.1", token="none")
    assert len(found.mend.split("; ")) == 3


def test_the_name_of_this_machine_is_looked_up_in_time():
    assert nodes.own_address() == "" or re.fullmatch(r"[\d.]+", nodes.own_address())
