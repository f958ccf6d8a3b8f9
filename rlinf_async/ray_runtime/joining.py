"""From when on every process of a run records what it does, and the driver looks at all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlinf_async import __version__
from rlinf_async.config import words
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.processes import Process
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import SpanLog
from rlinf_async.observe.stacks import answer_for_stacks
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.remote_calls import Fleet
from rlinf_async.ray_runtime.revival import PROCESS_OF_GROUP, Revivals
from rlinf_async.ray_runtime.status_poller import StatusPoller
from rlinf_async.ray_runtime.termination import TERMINATION


def begin_records(
    run_dir: Path,
    settings: RunSettings,
    *,
    config: str,
    versions: Mapping[str, str],
    fresh: bool,
) -> RunDir:
    """Begin the run directory. `fresh`: nothing in it is the run's own, as it goes on from no checkpoint."""
    make_directory(run_dir)
    records = RunDir(run_dir)
    records.write_config(config)
    records.begin(settings.facts(), title=title_of(settings), versions=versions, fresh=fresh)
    return records


def join_run(
    fleet: Fleet,
    settings: RunSettings,
    records: RunDir,
    coordinator: Handle,
    *,
    revivals: Revivals,
    say: Callable[[str], None],
    step: Callable[[], tuple[int, int]],
    watch: Callable[[], float],
) -> SpanLog:
    """Have every process record what it does, and look at them during every wait; the driver's own spans.

    Those that fall silent are brought back by `revivals`. `step` tells the present step, and the last;
    `watch` looks at Ray itself.
    """

    def actors() -> dict[str, Any]:
        return {
            process.numbered(rank): actor
            for name, process in PROCESS_OF_GROUP.items()
            for rank, actor in enumerate(fleet.actors(name))
        }

    joining = [
        actor.join_run.remote(name, str(records.path), clock=coordinator) for name, actor in actors().items()
    ]
    fleet.wait(joining, "all processes to join the run")
    spans = SpanLog(records.trace, process=Process.DRIVER)
    answer_for_stacks(records.path, Process.DRIVER)
    revivals.join(spans)
    poller = StatusPoller(
        actors,
        records,
        stall_s=settings.asynchrony.advanced.stall_s,
        silent_s=settings.asynchrony.advanced.silent_s,
        guard=revivals,
        say=say,
        step=step,
    )
    fleet.while_waiting = lambda: min(TERMINATION.check(), watch(), poller.poll())
    return spans


def title_of(settings: RunSettings) -> str:
    """Return the description of a run, in a line."""
    plan, levels = settings.plan, words(settings.asynchrony.levels)
    return (
        f"rlinf-async {__version__}: levels {levels}; {plan.shards} shards of "
        f"{plan.envs_per_shard} environments; inference ranks {plan.inference_ranks}, learner ranks "
        f"{plan.learner_ranks}; staleness at most {settings.asynchrony.max_staleness}"
    )
