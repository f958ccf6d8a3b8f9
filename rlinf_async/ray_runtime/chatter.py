"""Filters messages of Ray that call for no action, or that the run gives in a sentence of its own."""

from __future__ import annotations

import logging
from typing import Any

TOKEN_MODULE = "ray._private.authentication.authentication_token_setup"
TOKENS_ENABLED_MESSAGE = "Token authentication is enabled"
"""Ray's default. The message that tokens are disabled is a warning worth reading, and stays."""
LOGGER = logging.getLogger(__name__)


def hush(*, said: bool = False) -> None:
    """Leave the notice of Ray's default way to authenticate out of this process's output.

    Unless they are to be `said`, Ray's own words about processes that have died are left out, too: a page of
    the raylet's log for each, before the run can say which process it was and what was done about it.
    """
    logging.getLogger(TOKEN_MODULE).addFilter(_worth_reading)
    if not said:
        from ray._private import worker

        # Ray has no setting for these. One whose function has another name says them all the same.
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = _left_out


def _left_out(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    LOGGER.debug("%s", data.get("lines"))


def _worth_reading(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(TOKENS_ENABLED_MESSAGE)
