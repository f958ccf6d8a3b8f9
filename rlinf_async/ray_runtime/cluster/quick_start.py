"""A start of Ray without work that only costs time: imports for a check, what all workers import, and
helpers that nothing in a run asks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._private import ray_constants, services, utils
from ray._private.node import Node

from rlinf_async.ray_runtime.cluster import idle_agent, start_worker
from rlinf_async.ray_runtime.cluster.template import (
    EARLY,
    NO_VARIABLES,
    Shared,
    Template,
    can_be_forked,
    has_process_files,
)

SCRIPT_NAME = "SETUP_WORKER_FILENAME"
"""Ray's constant with the name of the script that starts worker processes with variables of their own."""
CHECK = "get_dashboard_dependency_error"
"""Ray's function that imports what its dashboard imports, to see if it is there."""
DASHBOARDS_PACKAGES = ("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client")
TEMPLATE = "rlinf_async_worker_template"
"""The name of the template among Ray's processes of a node."""
API_SERVER, AUTOSCALER, LOG_READER = "start_api_server", "start_monitor", "start_log_monitor"
"""Ray's functions that start a helper: the dashboard's server; the autoscaler, which has nothing to scale in
a cluster of one machine; and the reader of workers' logs, for the driver to print."""
RAYLET, START = "start_raylet", "start_ray_process"
QUOTED = ' \t"'
"""Characters for which Ray quotes a word of that command."""
AGENT_OPTION = "--dashboard_agent_command="
"""The raylet's option with the command of its agent."""
NO_SERVER = b"127.0.0.1:0"
"""The address of a dashboard that is not there: Ray waits for one before it gives up."""


@contextmanager
def starting_quickly(
    shared: Shared | None = None,
    variables: Mapping[str, str] = NO_VARIABLES,
    *,
    has_dashboard: bool = True,
    reads_logs: bool = True,
) -> Iterator[None]:
    """A block where a Ray cluster that this process starts uses `start_worker`, with a template for workers,
    and where the packages of Ray's dashboard are looked up instead of imported. The template has the
    environment of this process with `variables`, which all workers have.

    Without `has_dashboard` it starts no server of a dashboard, and `idle_agent` in place of Ray's; without
    `reads_logs`, nothing that reads the logs of workers; without both no autoscaler, which prints what Ray
    cannot place.

    A Ray version without one of these private names starts as ever.
    """
    with ExitStack() as patches:
        if hasattr(ray_constants, SCRIPT_NAME) and sys.platform == "linux":
            # Ray joins it to a folder, which an absolute path replaces.
            own = str(Path(start_worker.__file__).resolve())
            patches.enter_context(patch.object(ray_constants, SCRIPT_NAME, own))
            if shared is not None and can_be_forked():
                patches.enter_context(_template(shared, variables))
        if not has_dashboard:
            _leave_out(patches, services, API_SERVER, _no_server)
            if has_process_files():
                _leave_out(patches, services, START, _with_idle_agent(getattr(services, START, None)))
        if not reads_logs:
            if not has_dashboard:
                _leave_out(patches, Node, AUTOSCALER, _nothing)
            _leave_out(patches, Node, LOG_READER, _nothing)
        if hasattr(utils, CHECK):
            check = _looked_up(getattr(utils, CHECK)) if has_dashboard else _left_out
            patches.enter_context(patch.object(utils, CHECK, check))
        yield


def _leave_out(patches: ExitStack, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    if hasattr(owner, name):
        patches.enter_context(patch.object(owner, name, instead))


def _nothing(_: Any) -> None:
    return None


def _no_server(*args: Any, **kwargs: Any) -> tuple[str, None]:
    """Do for Ray's `start_api_server` all but start the process."""
    from ray.experimental import internal_kv

    given = {**dict(zip(SERVERS_ARGUMENTS, args, strict=False)), **kwargs}
    raylet: Any = ray._raylet  # a compiled module, which has no types
    client = raylet.GcsClient(address=given["gcs_address"], cluster_id=given["cluster_id_hex"])
    internal_kv._initialize_internal_kv(client)
    space = ray_constants.KV_NAMESPACE_DASHBOARD
    client.internal_kv_put(ray_constants.DASHBOARD_ADDRESS.encode(), NO_SERVER, True, namespace=space)
    return "", None


def _with_idle_agent(start: Any) -> Callable[..., Any]:
    """Return Ray's function that starts a process, where the raylet's agent is `idle_agent`."""
    rays, own = (
        str(Path(services.RAY_PATH, "dashboard", "agent.py")),
        str(Path(idle_agent.__file__).resolve()),
    )
    if not {*rays, *own}.isdisjoint(QUOTED):
        return start

    def start_with_it(command: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        changed = [word.replace(rays, own) if word.startswith(AGENT_OPTION) else word for word in command]
        return start(changed, *args, **kwargs)

    return start_with_it


SERVERS_ARGUMENTS = ("include_dashboard", "raise_on_failure", "host", "gcs_address", "cluster_id_hex")


def _left_out() -> Exception:
    """Answer Ray's question what the dashboard lacks; then its agent does only what a run needs."""
    return ImportError("this cluster has no dashboard")


@contextmanager
def _template(shared: Shared, variables: Mapping[str, str]) -> Iterator[None]:
    """A block with a template, which serves the cluster that is started in it, and ends with it."""
    templates, raylet = [EARLY.take(shared, variables)], None
    start: Any = getattr(services, RAYLET, None)

    def start_and_serve(*args: Any, **kwargs: Any) -> Any:
        # Ray's processes inherit the name. After a start that has failed, a template belongs to that raylet.
        if templates[-1].serves:
            templates.append(Template(shared, variables))
        os.environ[start_worker.TEMPLATE_VARIABLE] = templates[-1].name
        started = start(*args, **kwargs)
        templates[-1].serve(started.process.pid)
        return started

    try:
        with ExitStack() as patches:
            first = {start_worker.TEMPLATE_VARIABLE: templates[0].name}
            patches.enter_context(patch.dict(os.environ, first))
            if start is not None:
                patches.enter_context(patch.object(services, RAYLET, start_and_serve))
            yield
        node: Any = getattr(ray._private.worker, "_global_node", None)
        processes = getattr(node, "all_processes", None) or {}
        for raylet in processes.get(ray_constants.PROCESS_TYPE_RAYLET, ()):
            # Ray ends it with the others, and so does `ray_processes`.
            own = raylet._replace(process=templates[-1].process, stdout_file=None, stderr_file=None)
            processes[TEMPLATE] = [own]
            templates[-1].serve(raylet.process.pid)
    finally:
        for template in templates if raylet is None else templates[:-1]:
            template.end()


def _looked_up(imported: Callable[[], Any]) -> Callable[[], Any]:
    def look() -> Any:
        return None if all(find_spec(name) for name in DASHBOARDS_PACKAGES) else imported()

    return look
