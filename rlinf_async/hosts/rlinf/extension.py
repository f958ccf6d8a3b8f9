"""The extension module that every process of a run loads, by a variable of RLinf's: ours, and the user's."""

from __future__ import annotations

import os

EXT_MODULE = "RLINF_EXT_MODULE"
USERS_MODULE = "RLINF_ASYNC_EXT_MODULE"
"""The variable with the user's extension module, while ours is in RLinf's variable."""
OWN_MODULE = "rlinf_async.plugin"


def users_module() -> str:
    """Return the name of the user's extension module; empty without one."""
    name = os.environ.get(EXT_MODULE, "")
    return os.environ.get(USERS_MODULE, "") if name in ("", OWN_MODULE) else name
