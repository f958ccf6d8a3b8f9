"""The command that runs a config."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rlinf_async.cli.arguments import (
    Chosen,
    ConfigDir,
    ConfigName,
    Multirun,
    Overrides,
    console,
    fail,
    or_exit,
    say_error,
)
from rlinf_async.core.failures import NothingLeftError, Terminated, in_words
from rlinf_async.hosts.host import Host, RayCluster, host_of
from rlinf_async.observe.ending import (
    IGNORED_SIGNALS,
    Judge,
    RunFailed,
    ending_of,
    recorded,
    recorded_ending,
    short,
)
from rlinf_async.termination import TERMINATION, answering_signals

if TYPE_CHECKING:
    from omegaconf import DictConfig

Restarts = Annotated[
    int,
    typer.Option(min=0, help="Start a failed run again from its last checkpoint, at most this many times."),
]
Join = Annotated[
    bool,
    typer.Option(
        "--join",
        help="Join the Ray cluster that runs on this machine. Without it a run on one node starts its own, "
        "unless RAY_ADDRESS, or the config, names one.",
    ),
]
REMEMBERED_CALLS = {
    False: ("RAY_task_events_report_interval_ms", "0"),
    True: ("RAY_task_events_max_num_task_in_gcs", "5000"),
}
"""The variable that bounds Ray's memory of calls, and its value without and with a dashboard, which shows
them. By default Ray remembers the last 100,000 calls, in half a gigabyte; it takes hours to reach 5,000."""
RestartWait = Annotated[float, typer.Option(min=0, help="Seconds before a failed run is started again.")]


def train(
    overrides: Overrides = None,
    config_name: ConfigName = None,
    config_dir: ConfigDir = None,
    worker_logs: Annotated[
        bool, typer.Option("--worker-logs", help="Show what the worker processes print.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve Ray's dashboard, if the run starts Ray.")
    ] = False,
    join: Join = False,
    restarts: Restarts = 0,
    restart_wait: RestartWait = 10.0,
    multirun: Multirun = False,
) -> None:
    """Run a config: `rlinf-async train metaworld_ppo_mlp async.mode=full runner.max_epochs=12`.

    Exit status 0: done; 1: failed; 2: could not begin; 130, 143, 129, 138: SIGINT, SIGTERM, SIGHUP, SIGUSR1.
    """
    config = Chosen.of(config_name, config_dir, overrides)
    if restarts:
        from rlinf_async.supervise import supervise

        options = [] if config.directory is None else ["--config-dir", str(config.directory)]
        options += ["--worker-logs"] * worker_logs + ["--dashboard"] * dashboard + ["--join"] * join
        # Without --restarts, or the child would supervise a child of its own.
        command = [sys.executable, "-m", "rlinf_async.cli", "train", "--config-name", config.name, *options]
        command += config.overrides
        raise typer.Exit(supervise(command, restarts=restarts, wait_s=restart_wait, say=_say))
    with ExitStack() as begun:
        with answering_signals():
            cfg, host, cluster = _prepared(config, begun, worker_logs, dashboard=dashboard, join=join)
        threading.excepthook = _say_thread
        # In this order, so that the ending is recorded before it is printed.
        with (
            _ending_in_a_sentence(),
            recorded(lambda: host.run_dir(cfg), judge=_judge(cluster)),
            TERMINATION.through_ray(),
        ):
            TERMINATION.install()  # and again after Ray's start, as Ray installs its own SIGTERM handler
            host.train(cfg, dashboard=dashboard)


def _prepared(
    config: Chosen, begun: ExitStack, worker_logs: bool, *, dashboard: bool, join: bool
) -> tuple[DictConfig, Host, RayCluster]:
    """Return the config of a run that can start, its host, and the kind of its Ray cluster; what begins
    meanwhile ends with `begun`, unless the run has taken it.
    """
    _choose_logs(worker_logs=worker_logs, dashboard=dashboard)
    cfg = config.compose()
    host = or_exit(host_of, cfg)
    cluster = or_exit(host.ray_cluster, cfg)
    if cluster != "none":
        from rlinf_async.ray_runtime.cluster.environment import choose_cluster, is_chosen

        or_exit(partial(choose_cluster, own=cluster == "own", join=join, environ=os.environ))
        if is_chosen(os.environ) and not dashboard:
            begun.enter_context(host.begin())
    import torch.multiprocessing as multiprocessing

    # As in RLinf's entry scripts: CUDA does not survive a fork.
    multiprocessing.set_start_method("spawn", force=True)
    if host.available:  # otherwise `prepare` names the missing package
        host.install()
    try:
        or_exit(host.prepare, cfg)
    except NothingLeftError as nothing:
        _end_at_once(nothing)
    if cluster != "none":
        from rlinf_async.ray_runtime.cluster.starting import hush

        hush(show_deaths=worker_logs)
        console.print("starting Ray and the worker processes, about half a minute ...", style="dim")
    return cfg, host, cluster


def _choose_logs(*, worker_logs: bool, dashboard: bool) -> None:
    # Ray and RLinf read these variables at their import or start.
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "1" if worker_logs else "0")
    os.environ.setdefault(*REMEMBERED_CALLS[dashboard])
    if not worker_logs:
        os.environ.setdefault("RLINF_LOG_LEVEL", "WARNING")
        logging.disable(logging.INFO)


@contextmanager
def _ending_in_a_sentence() -> Iterator[None]:
    """Turn a failed or interrupted run into one sentence and its exit status, without a traceback."""
    try:
        yield
    except (RunFailed, KeyboardInterrupt, Terminated) as error:
        # Ray ends its cluster when Python exits. A signal during that time would only print a traceback.
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # Another name, as Python deletes `error` at the end of the handler.
        run_error: RunFailed | KeyboardInterrupt | Terminated = error
    else:
        return
    ending = recorded_ending(run_error)
    if isinstance(run_error, RunFailed):
        say_error(str(run_error))
    elif ending is not None:
        _say(str(ending))
    raise typer.Exit(1 if ending is None else ending.status)


def _say_thread(failure: threading.ExceptHookArgs) -> None:
    """Report the error of a thread in one line; the loop that waits for the thread reports the consequences.
    SystemExit is no error.
    """
    error, thread = failure.exc_value, failure.thread
    if error is not None and thread is not None and not isinstance(error, SystemExit):
        _say(f"a thread of the driver, {thread.name}, has ended by {short(in_words(error))}")


def _judge(cluster: RayCluster) -> Judge:
    """Return the function that derives the ending of a run from an exception."""
    if cluster == "none":
        return ending_of
    from rlinf_async.ray_runtime.driver.endings import ray_ending_of

    return ray_ending_of


def _end_at_once(nothing: NothingLeftError) -> NoReturn:
    """End the command, successfully if it resumed automatically: repeated, it must not fail on a finished
    run."""
    if not nothing.automatic:
        fail(str(nothing))
    _say(str(nothing))
    raise typer.Exit


def _say(text: str) -> None:
    console.print(text, style="bold", markup=False, soft_wrap=True)
