"""The module of the entry point group `verl.plugins`: its import registers the platform and the trainer.

veRL imports it in every process, while it is being imported itself, and hides errors at the log level DEBUG;
all that a user would see is that the trainer is unknown. So the cause is printed here.
"""

from __future__ import annotations

import sys

try:
    from rlinf_async.hosts.verl import platform, trainer
    from rlinf_async.hosts.verl.guard import guard

    guard()
except (ImportError, AttributeError, AssertionError, OSError, RuntimeError, TypeError, ValueError) as error:
    sys.stderr.write(
        f"rlinf-async: veRL has no trainer mode vla_async in this process: {type(error).__name__}: {error}; "
        "`rlinf-async doctor` looks for the cause\n"
    )
    sys.stderr.flush()
    raise

__all__ = ["platform", "trainer"]
