"""The place of the simulators, and the number of processor cores that a run leaves idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rlinf_async.core.sharding import SEPARATE_SIMULATORS, VECTORISED_SIMULATORS, ShardPlan
from rlinf_async.lab.report.measures import Measures
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.observe.spans import kind_words

Place = Literal["worker", "processes", "accelerator", "unknown"]
"""Simulators share their env worker's process, have processes of their own, or are on an accelerator."""

SIMULATOR_KINDS = ("step", "reset")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of a run, as far as its records have them."""

    cores: int | None
    """Processor cores; None where that is unknown, or where there are several nodes."""
    on_cpu: bool
    """True if policy and learner cannot be on an accelerator."""
    simulators: Place
    processes: int | None
    """The number of processes of a shard's simulators, if the environments have such a setting."""

    @classmethod
    def of(cls, run: RunFiles) -> Machine:
        cores, versions = run.facts.get("cores"), run.facts.get("versions")
        nodes = run.setting("cluster.num_nodes", run.setting("trainer.nnodes", 1))
        torch = versions.get("torch") if isinstance(versions, dict) else None
        processes = run.setting("env.train.processes")
        return cls(
            cores=cores if isinstance(cores, int) and cores > 0 and nodes == 1 else None,
            on_cpu=isinstance(torch, str) and torch.endswith("+cpu"),
            simulators=_place(run.setting("env.train.env_type"), processes),
            processes=processes if isinstance(processes, int) and not isinstance(processes, bool) else None,
        )

    def busy_cores(self, plan: ShardPlan, measures: Measures) -> float:
        """Return the estimated mean number of busy cores, with a core for each simulator process and rank."""
        simulating = sum(measures.share("env", kind_words(kind)) for kind in SIMULATOR_KINDS)
        at_once = self.simulators_at_once(plan) * simulating if self.simulators != "accelerator" else 0.0
        busy = measures.busy
        return (
            at_once
            + busy.get("inference", 0.0) * plan.inference_ranks
            + busy.get("learner", 0.0) * plan.learner_ranks
        )

    def simulators_at_once(self, plan: ShardPlan) -> int:
        """Return the number of processes or threads that step simulators when every shard steps."""
        if self.simulators != "processes":
            return plan.shards
        return plan.shards * (self.processes or plan.envs_per_shard)

    def idle_cores(self, plan: ShardPlan | None, measures: Measures) -> float | None:
        """Return the mean number of cores that the run left idle; None where that is unknown."""
        if self.cores is None or plan is None or not measures.shares.get("env"):
            return None
        return self.cores - self.busy_cores(plan, measures)


def _place(simulator: object, processes: object) -> Place:
    if simulator in VECTORISED_SIMULATORS:
        return "accelerator"
    if isinstance(processes, int) and not isinstance(processes, bool):
        return "processes" if processes > 0 else "worker"
    return "processes" if simulator in SEPARATE_SIMULATORS else "unknown"


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The config keys for numbers of processes and for intervals; "" for a missing key."""

    env_workers: str = ""
    inference_ranks: str = ""
    learner_ranks: str = ""
    evaluation: str = ""
    saving: str = ""

    @classmethod
    def of(cls, setting: Callable[[str], Any]) -> Keys:
        """Choose the keys by the sections of the config; a run in one process has none of them."""
        if setting("cluster.component_placement") is not None:
            return RLINF_KEYS
        return VERL_KEYS if setting("vla") is not None else cls()


RLINF_KEYS = Keys(
    env_workers="cluster.component_placement.env",
    inference_ranks="cluster.component_placement.rollout",
    learner_ranks="cluster.component_placement.actor",
    evaluation="runner.val_check_interval",
    saving="runner.save_interval",
)
VERL_KEYS = Keys(
    env_workers="env.workers",
    inference_ranks="vla.inference.ranks",
    learner_ranks="trainer.n_gpus_per_node",
    evaluation="trainer.test_freq",
    saving="trainer.save_freq",
)
