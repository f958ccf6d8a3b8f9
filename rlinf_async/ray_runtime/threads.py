"""Threads of a worker process."""

from __future__ import annotations

import sys

SWITCH_S = 0.0005


def hand_over_quickly() -> None:
    """Let a thread that wakes up have the interpreter soon.

    A trip of a request passes between the event loop and other threads four times. Python lets a thread
    that computes go on for 5 ms when another one wakes, which would be most of the trip.
    """
    sys.setswitchinterval(SWITCH_S)
