"""Threads of a worker process."""

from __future__ import annotations

import os
import sys
from functools import wraps
from threading import Lock

SWITCH_S = 0.0005
TURNS = "rlinf_async_turns"
"""What marks the function that `fork_in_turns` puts in the place of `os.fork`."""


def hand_over_quickly() -> None:
    """Let a thread that wakes up have the interpreter soon.

    A trip of a request passes between the event loop and other threads six times. Python lets a thread
    that computes go on for 5 ms when another one wakes, which would be most of the trip.
    """
    sys.setswitchinterval(SWITCH_S)


def fork_in_turns() -> None:
    """Let a thread of this process that forks wait until no other one does.

    Each shard starts the processes of its simulators from its own thread, all shards at once. With
    filelock, which torch and huggingface_hub import, that may fail: many of its releases since 3.31 refuse
    a fork while another thread is in the midst of one ("os.fork is unsafe while filelock is changing
    descriptor ownership"). They look before any hook of `os.register_at_fork` is called, so that turns
    can only be taken around `os.fork` itself. `multiprocessing` calls it by that name.
    """
    fork = os.fork
    if hasattr(fork, TURNS):
        return
    turns = Lock()

    @wraps(fork)
    def one_at_a_time() -> int:
        with turns:  # which the child, too, holds when it begins, and gives up
            return fork()

    setattr(one_at_a_time, TURNS, turns)
    os.fork = one_at_a_time
