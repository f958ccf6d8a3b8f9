"""Access to a cluster that a run starts: only with a token of this run, where the installed Ray has them."""

from __future__ import annotations

import os
import secrets
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import Any

from rlinf_async.observe.files import PRIVATE_MODE

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_VARIABLES = (MODE_VARIABLE, "RAY_AUTH_TOKEN", TOKEN_PATH_VARIABLE)
"""The variables by which a user tells Ray how to ask for tokens, and for which."""
TOKEN_BYTES = 32
AUTH_MODULE = "ray._private.authentication"


def require_token(environ: MutableMapping[str, str], *, shared: bool = False) -> bool:
    """Have a cluster that this process is about to start refuse every process that lacks its token.

    A fresh token lies in a memory file of this process: it has no name in any folder and is gone with the
    process, and Ray's processes, which inherit `environ`, read it through `/proc`, as the same account may.
    With `shared` Ray keeps the token where it keeps the account's own, and `ray get-auth-token` shows it.

    Returns:
        True if a token was set; False where `environ` has such a variable already, or Ray has no tokens.
    """
    if any(name in environ for name in TOKEN_VARIABLES) or not _offered():
        return False
    environ[MODE_VARIABLE] = "token"
    if not shared:
        environ[TOKEN_PATH_VARIABLE] = _in_memory(secrets.token_hex(TOKEN_BYTES))
    _reread()
    return True


def _offered() -> bool:
    return find_spec(AUTH_MODULE) is not None


def _in_memory(text: str) -> str:
    """The path of a memory file with this text, which stays open as long as the process lives."""
    file = os.memfd_create("rlinf-async-token", os.MFD_CLOEXEC)
    os.fchmod(file, PRIVATE_MODE)
    os.write(file, text.encode())
    return f"/proc/{os.getpid()}/fd/{file}"


def _reread() -> None:
    """Ray has read its variables when it was imported, and a token that it has looked for it remembers."""
    from ray import _raylet

    raylet: Any = _raylet  # whose types do not name what is compiled
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
