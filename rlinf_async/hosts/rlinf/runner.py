"""RLinf's embodied runner, without a barrier between rollouts and training."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
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
from rlinf_async.core.spans import SpanLog
from rlinf_async.core.summary import RunSummary
from rlinf_async.core.tracing import StepReport
from rlinf_async.display import RunDisplay
from rlinf_async.entry_points import load_class
from rlinf_async.hosts.rlinf import compat
from rlinf_async.hosts.rlinf.checkpoint import read_ledger, resume_step, write_ledger
from rlinf_async.hosts.rlinf.config import resolve
from rlinf_async.hosts.rlinf.fleet import Fleet
from rlinf_async.hosts.rlinf.handshake import check_classes, check_versions, share_memory
from rlinf_async.hosts.rlinf.observed import leave_stacks
from rlinf_async.hosts.rlinf.publication import Publication
from rlinf_async.hosts.rlinf.pulse import Pulse
from rlinf_async.hosts.rlinf.reporting import StepReporter, TrainedStep, prefixed, write_facts
from rlinf_async.hosts.rlinf.turns import Turns

PROCESSES = {
    "env": "env worker",
    "rollout": "inference rank",
    "actor": "learner rank",
    "requests": "request channel",
    "trajectories": "trajectory channel",
}
"""RLinf's groups and our channels, in the words of a trace."""
DRAIN_S = 4.0
"""How long an interrupted run waits for rollouts that have started, before it ends their processes."""


class AsyncEmbodiedRunner(EmbodiedRunner):
    """Drives the learner step by step; env shards and inference ranks run beside it until the end.

    One step is what it is in RLinf: a global batch of trajectories, its optimizer steps, a weight sync. The
    learner waits for nothing but trajectories: while it trains a batch, the weights that the one before
    has made travel to inference, and that step is reported.
    """

    def __init__(
        self, cfg: DictConfig, actor: Any, rollout: Any, env: Any, reward: Any = None, critic: Any = None
    ) -> None:
        # The base class would start three channel processes that nobody here uses.
        self.cfg, self.actor, self.rollout, self.env = cfg, actor, rollout, env
        self.reward, self.critic = reward, critic
        groups = {"env": env, "rollout": rollout, "actor": actor}
        check_classes(groups)
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
        self._learning: list[Any] = []
        self._unreported: deque[TrainedStep] = deque()
        ledger = read_ledger(cfg.runner.get("resume_dir"))
        channels = {
            "requests": self._launch_channel("requests", self.settings),
            "trajectories": self._launch_channel("trajectories", self.settings, self.global_step, ledger),
        }
        self._fleet = Fleet({**groups, **channels}, deadline_s=self.settings.asynchrony.deadline_s)
        self._requests = self._fleet.actors("requests")[0]
        self._trajectories = self._fleet.actors("trajectories")[0]
        self._publication = Publication(self._fleet, self.settings, self._trajectories)
        self._turns = Turns(self._fleet, self._trajectories, batches=self.settings.batches)
        self._reporter = StepReporter(
            self._fleet, self.metric_logger, self.run_dir, total=self.max_steps, settings=self.settings
        )
        self._spans = SpanLog(None)

    def init_workers(self) -> None:
        """Build environments, models and optimizer; refuse to go on when a worker lacks this package."""
        with self._ending_in_order():
            # First, as every process answers once it is up. RLinf itself ends the driver, with status 255 and
            # not a word of the error, if a process that is still starting is killed because another failed.
            check_versions(self._fleet)
            init = self._fleet.call("rollout", "init_worker") + self._fleet.call("env", "init_worker")
            self._fleet.wait(init, "init_worker on the rollout and env workers")
            self._fleet.run("actor", "init_worker")
            share_memory(self._fleet)
            self._observe()
            if resume_dir := self.cfg.runner.get("resume_dir"):
                self._fleet.run("actor", "load_checkpoint", str(Path(resume_dir) / "actor"))

    def run(self) -> None:
        """Train until `max_steps`, then sum up."""
        with self._ending_in_order():
            self._start_inference()
            self._publication.first(self.global_step)
            self._start_envs()
            self.display.start(self._title(), step=self.global_step, total=self.max_steps)
            self._began = time.monotonic()
            if self.global_step < self.max_steps:
                self._learn()
            while self.global_step < self.max_steps:
                self._step()
            self._finish()

    def _step(self) -> None:
        """Wait for a batch to be trained, and begin the next as soon as nobody needs this version alone."""
        with self._spans.span("learn", step=self.global_step + 1):
            metrics = self._learned()
        returned = time.monotonic()
        self.global_step += 1
        published = self._publication.follow(self.global_step)
        lost = time.monotonic() - returned
        evaluation = self._evaluate_and_save(published)
        ended = time.monotonic()
        self._unreported.append(
            TrainedStep(
                step=self.global_step,
                seconds=ended - self._began,
                publication_seconds=lost + max(rank.get("publication_seconds", 0.0) for rank in metrics),
                learners=metrics,
                evaluation=evaluation,
                published=published,
            )
        )
        self._began = ended
        if self.global_step < self.max_steps:
            self._learn()

    def _learn(self) -> None:
        if self.settings.takes_turns:
            while self._unreported:
                self._report(self._unreported.popleft())
            self._turns.give_to_learner(self.global_step)
        self._learning = self._fleet.call(
            "actor", "learn", self.global_step, self.settings, self._trajectories
        )
        self._fleet.watch(self._learning, "learn on the actor workers")

    def _learned(self) -> list[dict[str, float]]:
        """What the learner ranks return. Meanwhile, steps whose version is published are reported."""
        while self._unreported:
            published = self._unreported[0].published
            what = f"learn, or version {self._unreported[0].step} to reach the inference ranks"
            self._fleet.first([*published, *self._learning], what)
            if not self._fleet.ended(published, 0):
                break
            self._report(self._unreported.popleft())
        return self._fleet.wait(self._learning, "learn on the actor workers")

    def _start_inference(self) -> None:
        self._inference_loops = self._fleet.call(
            "rollout", "serve", self.settings, self._requests, self._trajectories
        )
        self._fleet.watch(self._inference_loops, "inference")

    def _start_envs(self) -> None:
        self._env_loops = self._fleet.call(
            "env", "run_shards", self.settings, self._requests, self._trajectories
        )
        self._fleet.watch(self._env_loops, "env shards")

    def _evaluate_and_save(self, published: list[Any]) -> dict[str, float]:
        """What is due at this step, once the version to evaluate or to save is the one that acts."""
        runner = self.cfg.runner
        evaluate, save, _ = check_progress(
            self.global_step, self.max_steps, runner.val_check_interval, runner.save_interval, 1.0
        )
        if evaluate or save:
            self._publication.wait(self.global_step, published)
        metrics = {}
        if evaluate:
            with self._spans.span("evaluate", step=self.global_step):
                metrics = prefixed("eval", self.evaluate())
        if save:
            if self.settings.takes_turns:
                self._turns.give_to_learner(self.global_step)
            with self._spans.span("save", step=self.global_step):
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

    def _report(self, trained: TrainedStep) -> None:
        (lag,) = set(self._publication.wait(trained.step, trained.published))
        report, episodes = self._reporter.collect(trained)
        self._reporter.log(trained, {**episodes, **trained.metrics(lag), **report.as_metrics()})
        self._reports.append(report)
        self.display.step(report)

    def _finish(self) -> None:
        """Everything is trained: the gate has closed, and the loops return one after the other."""
        while self._unreported:
            self._report(self._unreported.popleft())
        self._fleet.wait(self._env_loops, "the env shards to hang up")
        self._fleet.run("requests", "close_requests")
        self._fleet.run("trajectories", "close_weights")
        self._fleet.wait(self._inference_loops, "the inference ranks to drain")
        self._fleet.run("env", "close_envs")
        self.metric_logger.finish()
        self.display.stop()
        summary = RunSummary.of(self._reports, self._fetch_ledger())
        (self.run_dir / "summary.json").write_text(json.dumps(summary.as_dict(), indent=2) + "\n")
        self.display.summary(summary, str(self.run_dir))
        self._fleet.kill()
        compat.clear_failure()

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

    def _observe(self) -> None:
        """From now on every process records what it does, and the driver looks at all of them."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.cfg, self.run_dir / "config.yaml", resolve=True)
        write_facts(self.run_dir, self.settings, self._title())
        trace = self.settings.asynchrony.trace
        actors = {
            f"{words} {rank}": actor
            for name, words in PROCESSES.items()
            for rank, actor in enumerate(self._fleet.actors(name))
        }
        joining = [
            actor.join_run.remote(name, str(self.run_dir), trace=trace, clock=self._trajectories)
            for name, actor in actors.items()
        ]
        self._fleet.wait(joining, "all processes to join the run")
        self._spans = SpanLog(self.run_dir / "trace" if trace else None, process="driver")
        self._stacks = leave_stacks(self.run_dir, "driver")
        pulse = Pulse(
            actors,
            self.run_dir / "status.json",
            stall_s=self.settings.asynchrony.stall_s,
            say=self.display.note,
            step=lambda: (self.global_step, self.max_steps),
        )
        self._fleet.while_waiting = pulse.beat

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
