"""The host without a framework: a run in this process, of the environments that its config names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from rlinf_async import __version__
from rlinf_async.config import AsyncConfig, words
from rlinf_async.hosts.async_block import plain, read_block
from rlinf_async.hosts.host import HERE, AssumedCluster, RayCluster
from rlinf_async.hosts.kit.models import unbuildable
from rlinf_async.hosts.local.declared import check_declared, environments_of, policy_of
from rlinf_async.hosts.local.keys import TABLE, malformed, unread
from rlinf_async.hosts.local.refusals import unserved
from rlinf_async.hosts.local.saved_policy import save_policy
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.trainer import LocalTrainer
from rlinf_async.hosts.presence import unwritable
from rlinf_async.hosts.reasons import refuse
from rlinf_async.hosts.workload import Workload
from rlinf_async.observe.check import Check
from rlinf_async.observe.claims import claim_directory
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.ending import recorded
from rlinf_async.observe.failures import FaultCounts, count_failures, sentence
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.meters import StepReport
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.summary import RunSummary, Tally


class LocalHost:
    """Fills `hosts.host.Host`.

    Its configs say `host: local`, name a `run_dir`, an `env.env_class` and a `model.model_type`, and hold
    the fields of `LocalSettings` in the block `settings`. There is nothing to install or to extend.
    """

    available = True
    """It is a part of this package."""
    installed = True

    def install(self) -> None:
        """There is no framework to put anything into."""

    def remove(self) -> None:
        """There is no framework to take anything out of."""

    def serves(self, cfg: DictConfig) -> bool:
        return bool(cfg.get("host") == "local")

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        return "none"

    def prepare(self, cfg: DictConfig) -> None:
        environments_of(cfg, checked(cfg))
        policy_of(cfg)
        claim_directory(Path(cfg.run_dir), key="run_dir")

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        settings, run_dir, display = settings_of(cfg), self.run_dir(cfg), RunDisplay()
        environments, policy = environments_of(cfg, settings), policy_of(cfg)
        make_directory(run_dir)
        records, title, weights = RunDir(run_dir), _title(settings), run_dir / "policy.pt"
        records.set_aside(weights=weights, say=display.note)
        records.write_config(OmegaConf.to_yaml(cfg, resolve=True))
        facts = {**settings.run.facts(), "driver": False}  # its loops report to nobody
        records.begin(facts, title=title, versions=self.versions())

        tally = Tally()

        def report(step: StepReport) -> None:
            tally.add(step)
            episodes = {"env/return": step.episode_return, "env/success_once": step.success}
            records.log(step.step, {**step.as_metrics(), **episodes})
            records.write_step(step.step, step.total)
            display.step(step)

        def fault(facts: dict[str, Any]) -> None:
            display.note(sentence(facts))

        trainer = LocalTrainer(
            settings,
            environments,
            policy=policy,
            on_step=report,
            run_dir=run_dir,
            on_fault=fault,
            keep_steps=False,
        )
        display.start(title, step=0, total=settings.batches)
        so_far = partial(_sum_of, tally, trainer)
        with recorded(lambda: run_dir, summary=so_far):
            try:
                result = trainer.run()
            finally:
                display.stop()
            tries = settings.asynchrony.advanced.save_failures
            save_policy(result.weights, weights, tries=tries, say=display.note)
        summary = tally.summary(result.ledger, count_failures(run_dir))
        records.write_summary(summary.as_dict())
        display.summary(summary, str(run_dir))

    def run_dir(self, cfg: DictConfig) -> Path:
        """As it is from here: environments of a run in this process may change its directory."""
        return Path(cfg.run_dir).absolute()

    def explain(self, cfg: DictConfig, cluster: AssumedCluster = HERE) -> dict[str, Any]:
        if cluster != HERE:
            raise ValueError("a run of the local host is one process of this machine: it takes no cluster")
        settings = checked(cfg)
        return {
            "mode": settings.asynchrony.mode,
            "levels": settings.asynchrony.levels,
            "max_staleness": settings.asynchrony.max_staleness,
            "correction": settings.asynchrony.correction,
            "streams": settings.run.streams,
            "reset_ahead": settings.asynchrony.rollout.reset_ahead,
            "optimizer_steps": settings.run.optimizer_steps,
            **asdict(settings.plan),
        }

    def show(self, facts: Mapping[str, Any], console: Console) -> None:
        table = Table(show_header=False)
        for name, value in facts.items():
            table.add_row(name, words(value) if name == "levels" else str(value))
        console.print(table)

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = HERE) -> dict[str, Any]:
        return plain(cfg)

    def workload(self, cfg: DictConfig) -> Workload:
        settings = settings_of(cfg)
        if cfg.settings.get("seed") is None:
            raise ValueError(
                "the config gives no settings.seed, by which its runs could be told apart; add it"
            )
        return Workload(
            run_dir="run_dir",
            steps=("settings.batches", settings.batches),
            seeds={"settings.seed": settings.seed},
            off="off: the same loops with every level off.",
        )

    def checks(self) -> Sequence[Check]:
        return []

    def versions(self) -> dict[str, str]:
        return {"rlinf-async": __version__, "torch": version("torch")}


def _sum_of(tally: Tally, trainer: LocalTrainer, faults: FaultCounts) -> RunSummary:
    return tally.summary(trainer.ledger, faults)


def settings_of(cfg: DictConfig) -> LocalSettings:
    """The settings of a config of this host.

    Raises:
        ValueError: a key that nothing reads or that is not served, a value that is none of its kind, or
            settings that do not fit together.
    """
    values = plain(cfg)
    refuse(TABLE.misshapen(values))
    refuse([*malformed(values), *unread(values)])
    asynchrony = AsyncConfig.from_mapping(read_block(values))
    refuse(list(unserved(asynchrony)))
    return LocalSettings(asynchrony=asynchrony, **(values.get("settings") or {}))


def checked(cfg: DictConfig) -> LocalSettings:
    """The settings of a run that can begin on this machine.

    Raises:
        ValueError: as of `settings_of`; or what the config names is not here.
    """
    settings = settings_of(cfg)
    check_declared(cfg)
    unbuilt = unbuildable(plain(cfg)["model"], key="model")
    refuse([*unwritable(str(cfg.run_dir), key="run_dir"), *unbuilt])
    return settings


def _title(settings: LocalSettings) -> str:
    plan, asynchrony = settings.plan, settings.asynchrony
    return (
        f"rlinf-async {__version__}, in one process: levels {words(asynchrony.levels)}; {plan.shards} shards "
        f"of {plan.envs_per_shard} environments; staleness at most {asynchrony.max_staleness}"
    )
