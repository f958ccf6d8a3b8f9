"""Runs a config of the local host, in this process."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlinf_async import __version__
from rlinf_async.config import words
from rlinf_async.core.restarts import MAX_FAILED_SAVES, save_wait_s
from rlinf_async.hosts.local.config import remarks_of, settings_of
from rlinf_async.hosts.local.declared import environments_of, policy_of
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.trainer import LocalTrainer
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.ending import recorded
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.files import make_directory, write_whole
from rlinf_async.observe.holdings import held_by_this_process
from rlinf_async.observe.load import LoadMeter
from rlinf_async.observe.resources import ResourceLog
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog
from rlinf_async.observe.spans import Process
from rlinf_async.observe.state import RunState


def train(cfg: DictConfig, run_dir: Path, *, versions: Mapping[str, str]) -> None:
    """Run a prepared config; its records and, at the end, its weights are written to `run_dir`."""
    settings, display = settings_of(cfg), RunDisplay()
    environments, policy = environments_of(cfg, settings), policy_of(cfg)
    make_directory(run_dir)
    records, title, weights = RunDir(run_dir), _title(settings), run_dir / "policy.pt"
    # Before this run writes: its own files would be moved aside with those of an earlier run.
    records.set_aside(weights=weights, say=display.note)
    records.write_config(OmegaConf.to_yaml(cfg, resolve=True))
    facts = {**settings.run.facts(), "driver": False}  # there is no driver process
    records.begin(facts, title=title, versions=dict(versions))

    log, load = RunLog(records, display=display), LoadMeter()
    resources = ResourceLog(run_dir, say=display.note)

    def report(step: StepReport, metrics: Mapping[str, float]) -> None:
        log.step(replace(step, load=load.pop()), metrics)
        records.write_step(step.step, step.total, **look())

    def look() -> dict[str, Any]:
        return resources.look(time.monotonic(), lambda: {str(Process.DRIVER): held_by_this_process()})

    trainer = LocalTrainer(
        settings,
        environments,
        policy,
        on_step=report,
        run_dir=run_dir,
        on_fault=lambda fault: display.note(str(fault)),
        look=look,
        keep_steps=False,
    )
    for remark in remarks_of(cfg, settings):
        display.note(remark)
    display.start(title, step=0, total=settings.batches)

    def state() -> RunState:
        log.state.ledger = trainer.ledger
        return log.state

    with recorded(lambda: run_dir, state=state):
        try:
            result = trainer.run()
        finally:
            display.stop()
        save_policy(result.weights, weights, tries=MAX_FAILED_SAVES, say=display.note)
    log.finish(result.ledger)


def _title(settings: LocalSettings) -> str:
    plan, asynchrony = settings.plan, settings.asynchrony
    return (
        f"rlinf-async {__version__}, in one process: levels {words(asynchrony.levels)}; {plan.shards} shards "
        f"of {plan.envs_per_shard} environments; staleness at most {asynchrony.max_staleness}"
    )


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
    for tries_left in range(tries - 1, -1, -1):
        try:
            write_whole(path, content.getbuffer(), flush=True)
            return
        except OSError as error:
            why = error.strerror
            if not tries_left:
                raise OSError(f"{path} cannot be written: {why}; what the run has learned is lost") from error
            seconds = save_wait_s(tries - tries_left)
            say(f"{path} cannot be written: {why}; it is tried again in {seconds:g} s ({tries_left} more)")
            wait(seconds)
