"""The host without a framework: runs a config's environments and policy in this process.

Modules that need torch are imported by the call that needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rlinf_async import __version__
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, PackagedHost, RayCluster, Workload
from rlinf_async.hosts.local.config import checked, settings_of

if TYPE_CHECKING:
    from rlinf_async.observe.check import Check


class LocalHost(PackagedHost):
    """Runs in this process.

    Its configs say `host: local`, name a `run_dir`, an `env.env_class` and a `model.model_type`, and hold
    the fields of `LocalSettings` in the block `settings`. There is nothing to install or to extend.
    """

    marks = "host: local"
    available = True
    """The host is a part of this package."""
    installed = True

    def install(self) -> None:
        """Do nothing: there is no framework to change."""

    def remove(self) -> None:
        """Do nothing: there is no framework to restore."""

    def serves(self, cfg: DictConfig) -> bool:
        return bool(cfg.get("host") == "local")

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        return "none"

    def prepare(self, cfg: DictConfig) -> None:
        from rlinf_async.hosts.local.declared import environments_of, policy_of
        from rlinf_async.hosts.policy_contract import keeping_defaults
        from rlinf_async.observe.claim import claim_directory

        # The judgement imports packages, and builds the policy.
        with keeping_defaults(f"the package of model.model_type={lookup(plain(cfg), 'model.model_type')}"):
            settings = checked(cfg)
        environments_of(cfg, settings)
        policy_of(cfg)
        claim_directory(Path(cfg.run_dir), key="run_dir")

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        from rlinf_async.hosts.local.train import train

        train(cfg, self.run_dir(cfg), versions=self.versions())

    def run_dir(self, cfg: DictConfig) -> Path:
        """Return an absolute path, as environments in this process may change the working directory."""
        return Path(cfg.run_dir).absolute()

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        return plain(cfg)

    def workload(self, cfg: DictConfig) -> Workload:
        settings = settings_of(cfg)
        if (cfg.get("settings") or {}).get("seed") is None:
            raise ValueError(
                "the config has no settings.seed, so that its runs would all be the same; write settings: "
                "{seed: 0} into its file"
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
