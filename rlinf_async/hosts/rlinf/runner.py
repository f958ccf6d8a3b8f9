"""RLinf's embodied runner, without a barrier between rollouts and training."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Cluster, NodePlacementStrategy
from rlinf.utils.logging import get_logger
from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.metric_utils import compute_evaluate_metrics
from rlinf.utils.runner_utils import check_progress

from rlinf_async import __version__
from rlinf_async.core.buffer import Ledger
from rlinf_async.core.summary import RunSummary
from rlinf_async.core.tracing import StepReport
from rlinf_async.display import RunDisplay
from rlinf_async.entry_points import load_class
from rlinf_async.hosts.rlinf.checkpoint import read_ledger, resume_step, write_ledger
from rlinf_async.hosts.rlinf.config import resolve
from rlinf_async.hosts.rlinf.fleet import Fleet

DRAIN_S = 4.0
"""How long an interrupted run waits for rollouts that have started, before it ends their processes."""


class AsyncEmbodiedRunner(EmbodiedRunner):
    """Drives the learner step by step; env shards and inference ranks run beside it until the end.

    One step is what it is in RLinf: a global batch of trajectories, its optimizer steps, a weight sync.
    """

    def __init__(
        self, cfg: DictConfig, actor: Any, rollout: Any, env: Any, reward: Any = None, critic: Any = None
    ) -> None:
        # The base class would start three channel processes that nobody here uses.
        self.cfg, self.actor, self.rollout, self.env = cfg, actor, rollout, env
        self.reward, self.critic = reward, critic
        groups = {"env": env, "rollout": rollout, "actor": actor}
        _check_classes(groups)
        self.settings = resolve(
            cfg, sizes={name: len(group.worker_info_list) for name, group in groups.items()}
        )
        self.global_step = resume_step(cfg.runner.get("resume_dir"))
        self.set_max_steps()
        self.logger = get_logger()
        self.metric_logger = MetricLogger(cfg)
        self.display = RunDisplay()
        self.run_dir = Path(cfg.runner.logger.log_path)
        self._reports: list[StepReport] = []
        self._env_loops: list[Any] = []
        self._inference_loops: list[Any] = []
        self._ledger = read_ledger(cfg.runner.get("resume_dir"))
        channels = {
            "requests": self._launch_channel("requests", self.settings),
            "trajectories": self._launch_channel(
                "trajectories", self.settings, self.global_step, self._ledger
            ),
        }
        self._fleet = Fleet({**groups, **channels}, deadline_s=self.settings.asynchrony.deadline_s)
        self._requests = self._fleet.actors("requests")[0]
        self._trajectories = self._fleet.actors("trajectories")[0]

    def init_workers(self) -> None:
        """Build environments, models and optimizer; refuse to go on when a worker lacks this package."""
        with self._ending_in_order():
            init = self._fleet.call("rollout", "init_worker") + self._fleet.call("env", "init_worker")
            self._fleet.wait(init, "init_worker on the rollout and env workers")
            self._fleet.run("actor", "init_worker")
            self._check_versions()
            if resume_dir := self.cfg.runner.get("resume_dir"):
                self._fleet.run("actor", "load_checkpoint", str(Path(resume_dir) / "actor"))

    def run(self) -> None:
        """Train until `max_steps`, then sum up."""
        with self._ending_in_order():
            self.run_dir.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(self.cfg, self.run_dir / "config.yaml", resolve=True)
            self._publish(self.global_step)
            self._start_loops()
            self.display.start(self._title(), step=self.global_step, total=self.max_steps)
            while self.global_step < self.max_steps:
                self._step()
            self._finish()

    def _step(self) -> None:
        batch, began = self.global_step, time.monotonic()
        metrics = self._fleet.run("actor", "learn", batch, self.settings, self._trajectories)
        self.global_step += 1
        if self.settings.asynchrony.deterministic:
            self._fleet.run("trajectories", "collected", self.global_step)
        self._publish(self.global_step)
        evaluation = self._evaluate_and_save()
        report, episodes = self._report(batch, metrics, began)
        training = {name: value for name, value in metrics[0].items() if name != "busy"}
        self._log({**episodes, **training, **evaluation, **report.as_metrics()})
        self._reports.append(report)
        self.display.step(report)

    def _start_loops(self) -> None:
        self._env_loops = self._fleet.call(
            "env", "run_shards", self.settings, self._requests, self._trajectories
        )
        self._inference_loops = self._fleet.call("rollout", "serve", self._requests)
        self._fleet.watch(self._env_loops, "env shards")
        self._fleet.watch(self._inference_loops, "inference")

    def _publish(self, version: int) -> None:
        """Give every inference rank the weights of `version`, then open the gate for it."""
        # Awaited by itself: Ray does not promise that calls of an async actor run in their order.
        self._fleet.run("actor", "publish_version", version)
        sync = self._fleet.call("rollout", "sync_model_from_actor")
        sync += self._fleet.call("actor", "sync_model_to_rollout")
        self._fleet.wait(sync, f"the weights of version {version} to reach the inference ranks")
        self._fleet.run("trajectories", "publish", version)

    def _evaluate_and_save(self) -> dict[str, float]:
        runner = self.cfg.runner
        evaluate, save, _ = check_progress(
            self.global_step, self.max_steps, runner.val_check_interval, runner.save_interval, 1.0
        )
        metrics = self._prefixed("eval", self.evaluate()) if evaluate else {}
        if save:
            self._save_checkpoint()
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Evaluate the published version, beside the rollouts for training."""
        results = self._fleet.run("env", "evaluate_shards", self.settings, self._requests)
        return compute_evaluate_metrics([result for result in results if result])

    def _save_checkpoint(self) -> None:
        logger = self.cfg.runner.logger
        directory = self.run_dir / logger.experiment_name / "checkpoints" / f"global_step_{self.global_step}"
        actor = directory / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        self._fleet.run("actor", "save_checkpoint", str(actor), self.global_step)
        write_ledger(directory, version=self.global_step, ledger=self._fetch_ledger())
        self.logger.info(f"Saved checkpoint {directory}")

    def _report(
        self, batch: int, metrics: list[dict[str, float]], began: float
    ) -> tuple[StepReport, dict[str, float]]:
        env = self._fleet.run("env", "pop_metrics", batch)
        inference = self._fleet.run("rollout", "pop_busy")
        batches = self._fleet.run("requests", "pop_batches")[0]
        trajectories = self._fleet.run("trajectories", "report")[0]
        before, self._ledger = self._ledger.env_steps_trained, trajectories["ledger"]
        episodes = compute_evaluate_metrics([result for result, _ in env if result])
        report = StepReport(
            step=self.global_step,
            total=self.max_steps,
            seconds=time.monotonic() - began,
            env_steps=self._ledger.env_steps_trained - before,
            episode_return=_optional(episodes.get("return")),
            success=_optional(episodes.get("success_once")),
            busy={
                "env": _mean([share for _, share in env]),
                "inference": _mean(inference),
                "learner": _mean([rank["busy"] for rank in metrics]),
            },
            staleness=trajectories["staleness"],
            batch_size=batches["size"],
            batch_wait=batches["wait"],
        )
        return report, self._prefixed("env", episodes)

    def _log(self, metrics: Mapping[str, float]) -> None:
        self.metric_logger.log(dict(metrics), self.global_step - 1)
        line = {"step": self.global_step, **{name: float(value) for name, value in sorted(metrics.items())}}
        with (self.run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _finish(self) -> None:
        """Everything is trained: the gate has closed, and the loops return one after the other."""
        self._fleet.wait(self._env_loops, "the env shards to hang up")
        self._fleet.run("requests", "close_requests")
        self._fleet.wait(self._inference_loops, "the inference ranks to drain")
        self._fleet.run("env", "close_envs")
        self._ledger = self._fetch_ledger()
        self.metric_logger.finish()
        self.display.stop()
        summary = RunSummary.of(self._reports, self._ledger)
        (self.run_dir / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2) + "\n")
        self.display.summary(summary, str(self.run_dir))
        self._fleet.kill()

    @contextmanager
    def _ending_in_order(self) -> Iterator[None]:
        """On an interrupt, let rollouts end for a moment; on any failure, leave no process behind."""
        succeeded = False
        try:
            yield
            succeeded = True
        except KeyboardInterrupt:
            self.display.stop()
            self.display.note("interrupted: closing the gate, waiting for rollouts that have started")
            self._trajectories.close_gate.remote()
            ended = not self._env_loops or self._fleet.ended(self._env_loops, DRAIN_S)
            self.display.note("all rollouts have ended" if ended else "ending rollouts that still run")
            raise
        finally:
            if not succeeded:
                self.display.stop()
                self._fleet.kill()

    def _launch_channel(self, name: str, *arguments: Any) -> Any:
        channel = load_class("rlinf_async.channels", name)
        return channel.create_group(*arguments).launch(
            Cluster(),
            name=f"async_{name}",
            placement_strategy=NodePlacementStrategy([0]),
            # Every env shard may wait in it at the same time.
            max_concurrency=2**31 - 1,
            disable_distributed_log=True,
        )

    def _check_versions(self) -> None:
        for name in ("env", "rollout", "actor"):
            for rank, version in enumerate(self._fleet.run(name, "plugin_version")):
                if version != __version__:
                    raise RuntimeError(
                        f"{name} rank {rank} runs rlinf-async {version}, the driver {__version__}: install "
                        "the same version on every node"
                    )

    def _fetch_ledger(self) -> Ledger:
        return self._fleet.run("trajectories", "read_ledger")[0]

    def _title(self) -> str:
        on = [name for name, enabled in self.settings.asynchrony.levels.items() if enabled]
        plan = self.settings.plan
        return (
            f"rlinf-async {__version__}: levels {' + '.join(on)}; {plan.shards} shards of "
            f"{plan.envs_per_shard} environments; inference ranks {plan.inference_ranks}, learner ranks "
            f"{plan.learner_ranks}; staleness at most {self.settings.asynchrony.max_staleness}"
        )

    @staticmethod
    def _prefixed(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
        return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}


def _check_classes(groups: Mapping[str, Any]) -> None:
    for name, group in groups.items():
        if not hasattr(group, "plugin_version"):
            raise TypeError(
                f"the {name} workers are {group.worker_cls_name}, which cannot run asynchronously; provide a "
                f"subclass of rlinf-async's worker by an entry point rlinf_async.workers: {name}"
            )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
