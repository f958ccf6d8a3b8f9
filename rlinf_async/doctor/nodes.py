"""The check of a machine that is one of several nodes, before Ray starts."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rlinf_async.observe.check import Check, Status, skipped
from rlinf_async.observe.probes import output_of
from rlinf_async.ray_runtime.cluster.environment import MODE_VARIABLE, TOKEN_PATH_VARIABLE

RANK_VARIABLE = "RLINF_NODE_RANK"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
SILENCE_VARIABLES = {"RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "4"}
"""Ray's settings to notice a silent node after 20 seconds instead of 64; the first node reads them."""
INTERFACES_FOLDER = Path("/sys/class/net")
ROUTES_FILE = Path("/proc/net/route")
# 0.0.0.0, as the kernel's table of routes writes a destination.
DEFAULT_ROUTE = "00000000"

RESOLVE_CODE = "import socket; print(socket.gethostbyname(socket.gethostname()))"
"""Prints the address that other nodes get; it hangs if a name server does not answer."""


class Finding(NamedTuple):
    """A fault of a node, and its remedy."""

    problem: str
    mend: str
    fatal: bool = False


def own_address() -> str:
    """Return the address of this machine's host name; "" if it has none."""
    output, failure = output_of(RESOLVE_CODE, timeout=10)
    return "" if failure else output.strip()


def token_file() -> Path:
    """Return the file of Ray's token of this account."""
    return Path.home() / ".ray" / "auth_token"


def check_nodes(
    environ: Mapping[str, str],
    *,
    address: Callable[[], str] = own_address,
    token: Path | None = None,
    interfaces: Path = INTERFACES_FOLDER,
    routes: Path = ROUTES_FILE,
) -> Check:
    """Check the needs of several nodes, if the variable of the node's rank is set."""
    if RANK_VARIABLE not in environ:
        return skipped("nodes", f"this is the only node: {RANK_VARIABLE} is not set")
    first = environ[RANK_VARIABLE] == "0"
    findings = [
        *_interface(environ, address, interfaces, routes),
        *_token(environ, token or token_file()),
        *(_silence(environ) if first else ()),
    ]
    if not findings:
        return Check("nodes", "ok", f"node {environ[RANK_VARIABLE]}; Ray's token must be the same on all")
    status: Status = "fail" if any(one.fatal for one in findings) else "warn"
    problems, remedies = "; ".join(one.problem for one in findings), "; ".join(one.mend for one in findings)
    return Check("nodes", status, problems, f"before ray start: {remedies}")


def _interface(
    environ: Mapping[str, str], address: Callable[[], str], interfaces: Path, routes: Path
) -> Iterator[Finding]:
    """Find faults of Gloo's interface: by default Gloo tells other nodes the address of the host name."""
    mend = f"export {INTERFACE_VARIABLE}={_default_interface(routes) or 'THE_INTERFACE_TO_THE_OTHERS'}"
    if chosen := environ.get(INTERFACE_VARIABLE):
        if not (interfaces / chosen).exists():
            yield Finding(f"{INTERFACE_VARIABLE}={chosen} is no interface here", mend, fatal=True)
        return
    own_address_text = address()
    if not own_address_text:
        yield Finding("this machine's host name has no address, and Gloo looks it up", mend)
    elif ipaddress.ip_address(own_address_text).is_loopback:
        yield Finding(
            f"this machine's host name is {own_address_text}, which Gloo would tell the other nodes", mend
        )


def _default_interface(routes: Path) -> str:
    """Return the interface of the default route; "" if there is none."""
    if not routes.is_file():
        return ""
    rows = [line.split() for line in routes.read_text().splitlines()[1:]]
    return next((row[0] for row in rows if len(row) > 1 and row[1] == DEFAULT_ROUTE), "")


def _token(environ: Mapping[str, str], default_path: Path) -> Iterator[Finding]:
    """Find a missing token: if Ray's first node has one, Ray refuses nodes with none or another."""
    if environ.get(MODE_VARIABLE, "token").lower() != "token" or environ.get(TOKEN_VARIABLE):
        return
    path = Path(environ.get(TOKEN_PATH_VARIABLE) or default_path)
    if not path.exists():
        yield Finding(
            f"there is no token of Ray's in {path}: Ray refuses a node without the token of the first node, "
            "and without any token everyone who reaches Ray can run code",
            f"ray get-auth-token --generate on the first node, and the same {path} on every other",
        )


def _silence(environ: Mapping[str, str]) -> Iterator[Finding]:
    missing = [f"{name}={value}" for name, value in SILENCE_VARIABLES.items() if name not in environ]
    if missing:
        yield Finding("Ray notices a silent node only after about a minute", f"export {' '.join(missing)}")
