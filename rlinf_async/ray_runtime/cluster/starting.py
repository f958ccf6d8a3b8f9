"""Starts Ray at this machine's own address, tries again if it does not come up in time, and mutes its
notices."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._private import ray_constants, services

from rlinf_async.core.failures import Terminated, in_words
from rlinf_async.observe.ending import short
from rlinf_async.ray_runtime.cluster.environment import (
    ADDRESS_VARIABLE,
    CLIENT_SCHEME,
    MODE_VARIABLE,
    UNNAMED_CLUSTERS,
    connection_error,
    require_token,
)
from rlinf_async.ray_runtime.cluster.quick_start import starting_quickly
from rlinf_async.ray_runtime.cluster.template import EARLY, Shared
from rlinf_async.termination import TERMINATION

RETRY_WAITS_S = (5.0, 20.0)
"""Seconds before the second and the third try, which is the last; Ray gives each try half a minute."""

Say = Callable[[str], None]
Init = Callable[..., Any]


API_SERVER_VARIABLE = "RAY_API_SERVER_ADDRESS"
"""Ray's variable for the address of the dashboard's server. Without it, Ray's functions that ask the server
look for clusters on the machine, and fail if there are several."""


class RayNotStarted(RuntimeError):
    """Ray has not started; the message has the number of tries, and the error of the last one."""


class RayNotJoined(ConnectionError):
    """An existing Ray cluster has not let this process in; the message says why."""


class RayNotThere(RuntimeError):
    """Nothing listens at the address of a Ray cluster; the message says where, and why."""


SIZES_OF_A_CLUSTER = frozenset({"num_cpus", "num_gpus", "resources"})
"""Arguments of `ray.init` for a cluster that it starts."""


@contextmanager
def starting_ray(
    *, say: Say, options: Mapping[str, Any] | None = None, shared: Shared | None = None
) -> Iterator[None]:
    """A block where `ray.init` is tried again if it fails to start a cluster of the run's own.

    Such a cluster is started with `options`, requires a token (`require_token`), and listens on the loopback
    address only (`on_loopback`). If it has a dashboard, `API_SERVER_VARIABLE` names the server in the block.
    An existing cluster is joined without `SIZES_OF_A_CLUSTER`. When Ray is up, `TERMINATION` is installed:
    Ray itself would answer SIGTERM by aborting the process.

    Raises:
        Terminated: inside the block, by `ray.init`: SIGTERM has arrived during the start.
    """
    start: Init = ray.init
    given_server = os.environ.get(API_SERVER_VARIABLE)
    # Inside another such block do nothing: two blocks would make nine tries.
    if getattr(start, "tried_again", False):
        yield
        return

    def init(*args: Any, **kwargs: Any) -> Any:
        own = _starts(args[0] if args else kwargs.get("address"), kwargs.get("_temp_dir"))
        # Ray refuses to join a cluster with the size of a new one, which configs give for their own.
        joining = {name: value for name, value in kwargs.items() if name not in SIZES_OF_A_CLUSTER}
        settings = {**kwargs, **(options or {})} if own else joining
        with _exits_are_requests():
            if own:
                require_token(os.environ, shared=bool(settings.get("include_dashboard")))
                place = nullcontext() if "_node_ip_address" in settings else on_loopback()
                with place, _quickly(settings, shared):
                    context = tried_again(lambda: start(*args, **settings), say=say)
                if settings.get("include_dashboard"):
                    os.environ[API_SERVER_VARIABLE] = f"http://{context.dashboard_url}"
            else:
                _check_answer(args[0] if args else kwargs.get("address"), kwargs.get("_temp_dir"))
                context = _joined(lambda: start(*args, **settings))
                EARLY.end()  # not before: RLinf looks for a cluster first, and then starts one
        # After the start, which replaces the handler of SIGTERM.
        TERMINATION.install()
        return context

    init.tried_again = True  # type: ignore[attr-defined]
    try:
        with patch.object(ray, "init", init):
            yield
    finally:
        if given_server is not None:
            os.environ[API_SERVER_VARIABLE] = given_server
        else:
            os.environ.pop(API_SERVER_VARIABLE, None)


def begins_a_cluster() -> bool:
    """Return True if this process has no Ray, no block of `starting_ray`, and no cluster to join: if it now
    starts Ray, that is a cluster of its own.
    """
    if ray.is_initialized() or getattr(ray.init, "tried_again", False):
        return False
    return _starts("auto", None, not_found=True)


def _quickly(settings: Mapping[str, Any], shared: Shared | None) -> AbstractContextManager[None]:
    """Return the block for a start with these arguments of `ray.init`."""
    dashboard, reads_logs = settings.get("include_dashboard"), settings.get("log_to_driver")
    if dashboard:
        EARLY.end()  # no cluster will take it
    return starting_quickly(
        None if dashboard else shared,
        _variables_of_all(settings),
        has_dashboard=dashboard is not False,
        reads_logs=ray_constants.RAY_LOG_TO_DRIVER if reads_logs is None else reads_logs,
    )


def _variables_of_all(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that `ray.init` with `settings` gives to all workers."""
    variables = (settings.get("runtime_env") or {}).get("env_vars") or {}
    return {name: str(value) for name, value in variables.items()}


@contextmanager
def _exits_are_requests() -> Iterator[None]:
    """Turn an exit from a start of Ray into Terminated.

    `ray.init` installs two handlers of SIGTERM, one after the other, which exit with statuses of their own,
    15 and 1. Nothing else in a start of Ray exits.
    """
    try:
        yield
    except SystemExit as error:
        raise (error if isinstance(error, Terminated) else Terminated(signal.SIGTERM)) from None


def _check_answer(address: str | None, folder: str | None) -> None:
    """Check that something listens at the address of an existing cluster, which Ray would try for minutes.

    Raises:
        RayNotThere: nothing does.
        ConnectionError: nothing does, and Ray alone has found the address, among this machine's processes: it
            is of another run, which listens on the loopback address, or has just ended. RLinf starts a
            cluster then.
    """
    named = given = address or os.environ.get(ADDRESS_VARIABLE, "")
    is_found = given in UNNAMED_CLUSTERS and not os.environ.get(ADDRESS_VARIABLE)
    place, why = "", None
    with suppress(ConnectionError, ValueError, OSError):  # `ray.init` raises these itself
        if not named.startswith(CLIENT_SCHEME):
            named = services.canonicalize_bootstrap_address(named, folder) or ""
        place = named.removeprefix(CLIENT_SCHEME)
        if place.rpartition(":")[2].isdecimal():
            why = connection_error(place)
        # The file of `ray start` has the address of a cluster that the user has started.
        is_found = is_found and services.find_bootstrap_address(folder) is None
    if why is not None:
        if is_found:
            raise ConnectionError(f"a Ray cluster of another run does not answer at {place} ({why})")
        raise RayNotThere(f"does not answer at {place if given in UNNAMED_CLUSTERS else given} ({why})")


def _joined(start: Callable[[], Any]) -> Any:
    # From Ray 2.59 on, a cluster of `ray start` asks for the token of its account, if the account has one.
    # `ray.init` with an address sends a token, which travels unencrypted, only if the user has set the mode.
    try:
        return start()
    except ConnectionError as error:
        if os.environ.get(MODE_VARIABLE):
            raise
        raise RayNotJoined(f"has refused the connection ({short(in_words(error))})") from error


def _starts(address: str | None, folder: str | None, *, not_found: bool = False) -> bool:
    """Return True if `ray.init` with this address and folder starts a cluster instead of joining one;
    `not_found` if it would find none to join.
    """
    find: Any = services.canonicalize_bootstrap_address
    # `ray.init` raises these errors itself.
    try:
        return find(address, folder) is None
    except ConnectionError:
        return not_found
    except (ValueError, OSError):
        return False


def tried_again(start: Callable[[], Any], *, say: Say, wait: Callable[[float], Any] | None = None) -> Any:
    """Call `start`, again after each of `RETRY_WAITS_S` if it fails, and kill the processes of failed tries.

    Errors in the arguments, and a missing cluster, are raised at once.

    Raises:
        RayNotStarted: the last try has failed, too.
    """
    wait = wait or threading.Event().wait
    before = children()
    tries = len(RETRY_WAITS_S) + 1
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
            seconds = RETRY_WAITS_S[number - 1]
        number += 1
        say(f"Ray has not started ({reason}); try {number} of {tries} in {seconds:g} s")
        wait(seconds)


def children() -> set[int]:
    """Return the numbers of this process's children, with those that have ended but were not waited for."""
    numbers: set[int] = set()
    # By thread, as Linux lists a child under the thread that has started it.
    for tasks in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            numbers |= {int(number) for number in tasks.read_text().split()}
    return numbers


def _end(processes: set[int]) -> None:
    for number in processes:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


SWITCH_NAME = "ENABLE_RAY_CLUSTER"
"""Ray's constant that is False where other machines never join, as on Windows and macOS, where a firewall
would ask the user."""
SWITCH_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Users set this variable to 1 to have Ray listen for other machines after all."""


@contextmanager
def on_loopback() -> Iterator[None]:
    """A block where a cluster that Ray starts has the address 127.0.0.1, and all its servers listen there.

    The option `_node_ip_address` of `ray.init` is not enough: Ray replaces a loopback address by one that
    other machines see. The block changes nothing if Ray lacks the switch, or the user has set the variable.
    """
    if not hasattr(ray_constants, SWITCH_NAME) or SWITCH_VARIABLE in os.environ:
        yield
        return
    with patch.object(ray_constants, SWITCH_NAME, False):
        yield


TOKEN_MODULE = "ray._private.authentication.authentication_token_setup"
TOKENS_ENABLED_MESSAGE = "Token authentication is enabled"
"""Ray's notice about its default, which is muted. The warning that tokens are disabled is not."""
LOGGER = logging.getLogger(__name__)


def hush(*, show_deaths: bool = False) -> None:
    """Mute Ray's notice that token authentication is enabled in this process.

    Without `show_deaths`, Ray's reports of dead processes are muted, too: each is a page of the raylet's log,
    printed before the run can tell which process has died and how it goes on.
    """
    logging.getLogger(TOKEN_MODULE).addFilter(_worth_reading)
    if not show_deaths:
        from ray._private import worker

        # Ray has no setting for these. A Ray version without this function prints them anyway.
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = _left_out


def _left_out(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    LOGGER.debug("%s", data.get("lines"))


def _worth_reading(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(TOKENS_ENABLED_MESSAGE)
