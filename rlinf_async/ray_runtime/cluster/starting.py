"""Starting Ray: at this machine's own address, again where it does not come up in time, without chatter."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._private import ray_constants, services

from rlinf_async.observe.ending import short
from rlinf_async.observe.failures import in_words
from rlinf_async.ray_runtime.cluster.environment import MODE_VARIABLE, require_token
from rlinf_async.ray_runtime.cluster.termination import TERMINATION

WAITS_S = (5.0, 20.0)
"""Before the second try and before the third, which is the last; Ray gives each of them half a minute."""

Say = Callable[[str], None]
Init = Callable[..., Any]


class RayNotStarted(RuntimeError):
    """Ray has not come up in any try; the message says how often, and why the last one has failed."""


class RayNotJoined(ConnectionError):
    """A Ray cluster that is there has not let this process in; the message says why."""


@contextmanager
def starting_ray(*, say: Say, options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """In this block `ray.init` is tried again where it fails to start a cluster of the run's own.

    `options` are given to it in that case, the cluster asks for a token (`require_token`), and it listens
    where only this machine reaches it (`on_loopback`). A cluster that exists is joined, or is not, as ever.
    Signals are heeded as `TERMINATION` has it once Ray is there, which would answer SIGTERM by aborting the
    process.
    """
    start: Init = ray.init
    # Inside of another such block: two would try three times three times.
    if getattr(start, "tried_again", False):
        yield
        return

    def init(*args: Any, **kwargs: Any) -> Any:
        own = _starts(args[0] if args else kwargs.get("address"), kwargs.get("_temp_dir"))
        settings = {**kwargs, **(options or {})} if own else kwargs
        if own:
            require_token(os.environ, shared=bool(settings.get("include_dashboard")))
            with nullcontext() if "_node_ip_address" in settings else on_loopback():
                context = tried_again(lambda: start(*args, **settings), say=say)
        else:
            context = _joined(lambda: start(*args, **settings))
        # Behind the start, which replaces the handler of SIGTERM.
        TERMINATION.install()
        return context

    init.tried_again = True  # type: ignore[attr-defined]
    with patch.object(ray, "init", init):
        yield


def _joined(start: Callable[[], Any]) -> Any:
    # From Ray 2.59 on a cluster of `ray start` asks for the token of its account where there is one, and
    # `ray.init` with an address sends none before it is told to: a token in the clear is for nobody else.
    try:
        return start()
    except ConnectionError as error:
        if os.environ.get(MODE_VARIABLE):
            raise
        raise RayNotJoined(f"has let nobody in ({short(in_words(error))})") from error


def _starts(address: str | None, folder: str | None) -> bool:
    """Return True if `ray.init` with this address and folder starts a cluster, and looks for none to join."""
    find: Any = services.canonicalize_bootstrap_address
    with suppress(ConnectionError, ValueError, OSError):  # of which Ray speaks itself
        return find(address, folder) is None
    return False


def tried_again(start: Callable[[], Any], *, say: Say, wait: Callable[[float], Any] | None = None) -> Any:
    """`start`, at most as often as there are waits and once more; what a failed try leaves behind is ended.

    What is wrong with the arguments is raised at once, and so is that no cluster is there.

    Raises:
        RayNotStarted: the last try has failed, too.
    """
    wait = wait or threading.Event().wait
    before = children()
    tries = len(WAITS_S) + 1
    number = 1
    while True:
        try:
            return start()
        except (ValueError, TypeError, ConnectionError):
            raise
        except Exception as error:  # Ray raises Exception itself when a process of its own is late
            _end(children() - before)
            reason = short(in_words(error))
            if number == tries:
                raise RayNotStarted(f"has not started in {tries} tries ({reason})") from error
            seconds = WAITS_S[number - 1]
        number += 1
        say(f"Ray has not started ({reason}); try {number} of {tries} in {seconds:g} s")
        wait(seconds)


def children() -> set[int]:
    """The processes that this one has started and that have not been waited for, by their numbers."""
    numbers: set[int] = set()
    # By thread: Linux lists a child under the thread that has started it.
    for tasks in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            numbers |= {int(number) for number in tasks.read_text().split()}
    return numbers


def _end(processes: set[int]) -> None:
    for number in processes:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


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


TOKEN_MODULE = "ray._private.authentication.authentication_token_setup"
TOKENS_ENABLED_MESSAGE = "Token authentication is enabled"
"""Ray's default. The message that tokens are disabled is a warning worth reading, and stays."""
LOGGER = logging.getLogger(__name__)


def hush(*, show_deaths: bool = False) -> None:
    """Leave the notice of Ray's default way to authenticate out of this process's output.

    Without `show_deaths` Ray's own words about processes that have died are left out, too: a page of the
    raylet's log for each, before the run can say which process it was and what was done about it.
    """
    logging.getLogger(TOKEN_MODULE).addFilter(_worth_reading)
    if not show_deaths:
        from ray._private import worker

        # Ray has no setting for these. One whose function has another name says them all the same.
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = _left_out


def _left_out(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    LOGGER.debug("%s", data.get("lines"))


def _worth_reading(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(TOKENS_ENABLED_MESSAGE)
