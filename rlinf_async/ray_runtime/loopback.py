"""The address of a cluster that a run starts for itself: the machine's own, at which no other reaches it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ray._private import ray_constants

SWITCH_NAME = "ENABLE_RAY_CLUSTER"
"""Ray's constant that is False where other machines never join, as on systems whose firewalls would ask."""
SWITCH_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable by which a user has Ray listen for other machines after all: 1."""


@contextmanager
def on_loopback() -> Iterator[None]:
    """In this block, a cluster that Ray starts has the address 127.0.0.1, and all its servers listen there.

    The option `_node_ip_address` of `ray.init` does not do it: Ray puts the address that others see in the
    place of one that they do not. A Ray without the switch starts as ever, and so does one whose user has set
    the variable.
    """
    if not hasattr(ray_constants, SWITCH_NAME) or SWITCH_VARIABLE in os.environ:
        yield
        return
    with patch.object(ray_constants, SWITCH_NAME, False):
        yield
