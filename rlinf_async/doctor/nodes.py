"""The check of a machine that is one of several nodes: what it needs before Ray starts."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rlinf_async.observe.check import Check, Status, output_of, skipped
from rlinf_async.ray_runtime.cluster.environment import MODE_VARIABLE, TOKEN_PATH_VARIABLE

RANK_VARIABLE = "RLINF_NODE_RANK"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
SILENCE_VARIABLES = {"RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "4"}
"""Ray's settings to miss a silent node in 20 seconds, in the place of 64; the first node reads them."""
INTERFACES_FOLDER = Path("/sys/class/net")
ROUTES_FILE = Path("/proc/net/route")
# 0.0.0.0, as the kernel's table of routes writes a destination.
DEFAULT_ROUTE = "00000000"

RESOLVE_CODE = "import socket; print(socket.gethostbyname(socket.gethostname()))"
"""Prints the address that other nodes are told; a name server that does not answer would hang it."""


class Finding(NamedTuple):
    """Something that a node lacks, and the remedy."""

    problem: str
    mend: str
    fatal: bool = False


def own_address() -> str:
    """Return the address that this machine's name stands for; empty where it stands for none."""
    output, failure = output_of(RESOLVE_CODE, timeout=10)
    return "" if failure else output.strip()


def token_file() -> Path:
    """Return the place where Ray keeps the account's token."""
    return Path.home() / ".ray" / "auth_token"


def check_nodes(
    environ: Mapping[str, str],
    *,
    address: Callable[[], str] = own_address,
    token: Path | None = None,
    interfaces: Path = INTERFACES_FOLDER,
    routes: Path = ROUTES_FILE,
) -> Check:
    """Check what a second node needs, where a node's rank says that there is one."""
    if RANK_VARIABLE not in environ:
        return skipped("nodes", f"this is no node of several, on which {RANK_VARIABLE} would be set")
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
    """Gloo, by which processes of several nodes meet, tells the others the address of this machine's name."""
    mend = f"export {INTERFACE_VARIABLE}={_default_interface(routes) or 'THE_INTERFACE_TO_THE_OTHERS'}"
    if chosen := environ.get(INTERFACE_VARIABLE):
        if not (interfaces / chosen).exists():
            yield Finding(f"{INTERFACE_VARIABLE}={chosen} is no interface here", mend, fatal=True)
        return
    own_address_text = address()
    if not own_address_text:
        yield Finding("this machine's name has no address, which Gloo looks for", mend)
    elif ipaddress.ip_address(own_address_text).is_loopback:
        yield Finding(
            f"this machine's name means {own_address_text}, which Gloo would tell the other nodes", mend
        )


def _default_interface(routes: Path) -> str:
    """Return the interface of the default route; empty where there is none."""
    if not routes.is_file():
        return ""
    rows = [line.split() for line in routes.read_text().splitlines()[1:]]
    return next((row[0] for row in rows if len(row) > 1 and row[1] == DEFAULT_ROUTE), "")


def _token(environ: Mapping[str, str], default_path: Path) -> Iterator[Finding]:
    """Ray asks for a token where its first node has one, and refuses nodes that have none or another."""
    if environ.get(MODE_VARIABLE, "token").lower() != "token" or environ.get(TOKEN_VARIABLE):
        return
    path = Path(environ.get(TOKEN_PATH_VARIABLE) or default_path)
    if not path.exists():
        yield Finding(
            f"there is no token of Ray's in {path}: a node without that of the first is refused, and without "
            "any whoever reaches Ray can run code",
            f"ray get-auth-token --generate on the first node, and the same {path} on every other",
        )


def _silence(environ: Mapping[str, str]) -> Iterator[Finding]:
    missing = [f"{name}={value}" for name, value in SILENCE_VARIABLES.items() if name not in environ]
    if missing:
        yield Finding(
            "a node that falls silent is missed after about a minute", f"export {' '.join(missing)}"
        )
