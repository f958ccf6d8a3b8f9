"""What Ray says at every start although there is nothing to be done about it."""

from __future__ import annotations

import logging

TOKENS = "ray._private.authentication.authentication_token_setup"
NORMAL = "Token authentication is enabled"
"""Ray's default. That it is disabled is a warning worth reading."""


def hush() -> None:
    """Leave the notice of Ray's default way to authenticate out of this process's output."""
    logging.getLogger(TOKENS).addFilter(_worth_reading)


def _worth_reading(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NORMAL)
