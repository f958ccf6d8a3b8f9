"""The weights that a run of the local host ends with, in a file."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

WAIT_S = 10.0
"""Before the second try; each later wait is twice the one before."""


def save_policy(
    weights: Mapping[str, torch.Tensor],
    path: Path,
    *,
    tries: int,
    say: Callable[[str], None],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Write `weights` to `path`, whole or not at all; `say` is told of failed tries that are repeated.

    Raises:
        OSError: all `tries` have failed; the message names the file and the reason.
    """
    content = io.BytesIO()
    torch.save(dict(weights), content)
    half = path.with_suffix(".half")
    for again in range(tries - 1, -1, -1):
        try:
            half.write_bytes(content.getbuffer())
            half.replace(path)
            return
        except OSError as error:
            half.unlink(missing_ok=True)
            why = error.strerror
            if not again:
                raise OSError(f"{path} cannot be written: {why}; what the run has learned is lost") from error
            seconds = WAIT_S * 2 ** (tries - 1 - again)
            say(f"{path} cannot be written: {why}; it is tried again in {seconds:g} s ({again} more)")
            wait(seconds)
