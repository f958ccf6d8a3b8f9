"""A training run as its driver sees it, without a barrier between rollouts and training."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from rlinf_async import __version__
from rlinf_async.config import words
from rlinf_async.core.buffer import Ledger
from rlinf_async.core.request_channels import channel_nodes
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.meters import prefixed
from rlinf_async.observe.rollout_measures import mean_of_episodes
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog
from rlinf_async.observe.spans import Process, SpanLog
from rlinf_async.observe.stacks import answer_for_stacks
from rlinf_async.ray_runtime.checkpoints.other_rates import other_rates
from rlinf_async.ray_runtime.checkpoints.saved_buffer import extended
from rlinf_async.ray_runtime.cluster.ray_processes import RayWatch
from rlinf_async.ray_runtime.driver.endings import EndingInOrder
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.driver.gpu_shares import GpuShares
from rlinf_async.ray_runtime.driver.launched_run import LaunchedRun
from rlinf_async.ray_runtime.driver.revivals import PROCESS_OF_GROUP, Revivals, RunLoop
from rlinf_async.ray_runtime.driver.saver import Saver
from rlinf_async.ray_runtime.driver.shard_fitting import ShardFitting
from rlinf_async.ray_runtime.driver.status_poller import StatusPoller
from rlinf_async.ray_runtime.driver.step_reporter import StepReporter, TrainedStep
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker
from rlinf_async.termination import TERMINATION, Terminated
from rlinf_async.wire.nodes import has_other_nodes, this_node

SAVE_FAILURES = "async/save_failures"


class AsyncRun:
    """Drives the learner step by step; env shards and inference ranks run in parallel until the end.

    A step is a global batch of trajectories, its optimizer steps, and a new version of the policy. The
    learner waits for nothing but trajectories: while it trains a batch, the weights of the step before travel
    to inference, and the step before is reported.
    """

    def __init__(self, parts: LaunchedRun, *, display: RunDisplay | None = None) -> None:
        self.settings = settings = parts.settings
        self.step, self.total = parts.step, parts.total
        self.display = display or RunDisplay()
        say, hooks, run_dir = self.display.note, parts.hooks, parts.run_dir
        requests, coordinator = parts.requests, parts.coordinator
        self._parts, self._hooks, self._records = parts, hooks, RunDir(run_dir)
        self._requests, self._coordinator = {this_node(): requests}, coordinator
        groups = {**parts.workers, "requests": [requests], "coordinator": [coordinator]}
        self.fleet = Fleet(groups, deadline_s=settings.asynchrony.advanced.deadline_s)
        self.saver = Saver(self.fleet, settings, hooks, run_dir, rate_settings=parts.rate_settings, say=say)
        self._publication = Publication(self.fleet, coordinator, keeps="inference" in settings.restartable)
        turns = Turns(self.fleet, coordinator, batches=settings.batches)
        self._turns = turns if parts.takes_turns else None
        self._log = RunLog(self._records, display=self.display, loggers=hooks.log)
        self._reporter = StepReporter(
            self.fleet, run_dir, total=self.total, decisions=settings.samples_per_batch, say=say
        )
        self._gpu_shares = GpuShares(self.fleet, parts.shared_gpus, run_dir=run_dir, say=say)
        self._revivals = Revivals(
            self.fleet,
            settings,
            requests=self._requests,
            coordinator=coordinator,
            rebuild=parts.rebuild,
            elsewhere=parts.elsewhere,
            limit=self._gpu_shares.limit,
            run_dir=run_dir,
            say=say,
        )
        self._fitting = ShardFitting(self.fleet, settings, self._records, total=self.total, say=say)
        self._endings = EndingInOrder(
            self.fleet, parts, state=self._log.state, display=self.display, told=self._gpu_shares.told
        )
        self._env_loops: list[Any] = []
        self._inference_loops: list[Any] = []
        self._channel_calls: list[Any] = []
        self._learning: list[Any] = []
        self._steps_to_report: deque[TrainedStep] = deque()
        self._closed_step = self.step
        self._spans = SpanLog(None)
        self._watch = RayWatch()
        self.fleet.while_waiting = self._watch.check
        TERMINATION.install()

    def prepare(
        self, initialise: Callable[[Fleet], None], *, resume: Callable[[Fleet], None] | None = None
    ) -> None:
        """Build environments, policies and learners by `initialise`, and begin the run directory.

        `resume` is called after that, to load a framework's checkpoint.

        Raises:
            RuntimeError: a process runs another version of this package.
        """
        with self.ending_in_order():
            # First, as every process answers once it is up. A framework may end the driver, without showing
            # the error, if another process fails while one is still starting.
            check_versions(self.fleet)
            self._open_channels()
            self._gpu_shares.set_limits()
            initialise(self.fleet)
            self._observe()
            self.fleet.run(
                "coordinator", Coordinator.introduce, self.fleet.run("learner", LearnerRank.piece_address)
            )
            if resume is not None:
                resume(self.fleet)
            if self._parts.checkpoint is not None:
                (became,) = self.fleet.run(
                    "coordinator", Coordinator.resume_buffer, str(self._parts.checkpoint)
                )
                self.display.note(f"going on from step {self.step}: {became}")
                for remark in (
                    extended(became, self.step, self.settings),
                    other_rates(self._parts.checkpoint, self.step, self._parts.rate_settings),
                ):
                    if remark:
                        self.display.note(remark)
                self.saver.resume_known(self._parts.checkpoint, became.rollouts)

    def train(self, *, evaluate_first: bool = False) -> None:
        """Train until the last step, then write the summary. `evaluate_first`: evaluate before step 1,
        too.
        """
        with self.ending_in_order(), TERMINATION.patient():
            self._channel_calls = self._keep_channels()
            # Before the first weights: the inference loops fetch them, and `first` waits until they have.
            self._inference_loops = self._begin_loops("inference", InferenceWorker.serve, "inference")
            # Before env shards begin: no action may be sampled from weights that are not the learner's.
            self._publication.first(self.step)
            self._env_loops = self._begin_loops("env", ShardWorker.run_shards, "env shards")
            self.display.start(title_of(self.settings), step=self.step, total=self.total)
            if evaluate_first:
                self._hooks.log(self.step - 1, self._evaluation())
            self._began = time.monotonic()
            self._learn()
            while self._learning:
                self._step()
                self._fit_shards()
            if self.step < self.total:
                self._end_early()
            self._finish()

    def evaluate(self) -> dict[str, float]:
        """Evaluate the published version, while rollouts for training go on."""
        results = self.fleet.run_on_living("env", ShardWorker.evaluate_shards, self.settings, self._requests)
        if failures := sum(result is None for result in results):
            self.display.note(
                f"{failures} of {len(results)} env workers have died: their evaluation is left out"
            )
        return mean_of_episodes([result for result in results if result is not None])

    def fetch_ledger(self) -> Ledger:
        """Return the coordinator's ledger: counts of trajectories, trained, refused and in flight."""
        ledger: Ledger = self.fleet.run("coordinator", Coordinator.read_ledger)[0]
        return ledger

    def ending_in_order(self) -> AbstractContextManager[None]:
        """A block that records an error that ends it, and then leaves no process behind."""
        return self._endings(lambda: self._env_loops)

    def _open_channels(self) -> None:
        """Start the request channels of other nodes, after the env workers and inference ranks there."""
        if not has_other_nodes():
            return
        nodes = {group: self.fleet.run(group, RunProcess.node) for group in ("env", "inference")}
        barrier = not self.settings.asynchrony.rollout.enabled
        for node in channel_nodes(this_node(), **nodes, barrier=barrier)[1:]:
            self._requests[node] = self._parts.request_channel_on(node)
            self.fleet.add("requests", self._requests[node])

    def _keep_channels(self) -> list[Any]:
        """Watch the request channels, if there are several: that of a lost node is given up."""
        calls = self.fleet.call("requests", RequestChannel.stay) if len(self._requests) > 1 else []
        if self.settings.restartable:
            self.fleet.keep("requests", calls, "the request channels to end", self._revivals.without_channel)
        else:
            self.fleet.watch(calls, "the request channels to end")
        return calls

    def _step(self) -> None:
        """Wait until a batch is trained, evaluate and save if due, and begin the next batch."""
        with self._spans.span("learn", step=self.step + 1):
            metrics = self._wait_for_learner()
        learn_end = time.monotonic()
        self.step += 1
        self._revivals.working = True
        arrivals = self._publication.follow(self.step)
        pause = time.monotonic() - learn_end
        evaluate, save = self._hooks.due(self.step)
        if evaluate or save:  # inference must act with the version that is evaluated or saved
            self._publication.wait(self.step, arrivals)
        build_step = partial(
            TrainedStep,
            step=self.step,
            publication_seconds=pause + max(rank.get("publication_seconds", 0.0) for rank in metrics),
            learners=metrics,
            published=arrivals,
        )
        evaluation = self._evaluation() if evaluate else {}
        if save:
            self._save(
                before=lambda: self._end_step(build_step, {**evaluation, SAVE_FAILURES: 0.0}, report=True)
            )
            evaluation[SAVE_FAILURES] = float(self.saver.failed)
        # A save that has succeeded has ended the step already.
        if self._closed_step < self.step:
            self._end_step(build_step, evaluation)
        self._learn()

    def _fit_shards(self) -> None:
        """Begin the env loops again if the number of shards changes here."""
        if not self._learning:  # the run ends
            return

        def undisturbed() -> bool:
            return self._revivals.none_of("env") and self._revivals.none_of("inference")

        if settings := self._fitting.after(self.step, env_loops=self._env_loops, undisturbed=undisturbed):
            self.settings = settings
            self._records.change_facts(title=title_of(settings))
            self._revivals.go_on(settings)
            self.saver.go_on(settings)
            self._env_loops = self._begin_loops("env", ShardWorker.run_shards, "env shards")

    def _end_step(
        self, build_step: Callable[..., TrainedStep], evaluation: dict[str, float], *, report: bool = False
    ) -> None:
        """End the step; the next one begins here. With `report`, report all steps up to this one at once.

        A save calls this with `report` just before its checkpoint is whole. A run that is killed after that
        has the metrics of the step; one that is killed before trains the step again, and its first metrics
        are superseded.
        """
        now = time.monotonic()
        self._steps_to_report.append(build_step(seconds=now - self._began, evaluation=evaluation))
        self._began, self._closed_step = now, self.step
        if report:
            self._report_all()

    def _learn(self) -> None:
        """Begin the next batch, unless it was the last one, or the run was asked to end."""
        self._learning = []
        if self.step >= self.total or TERMINATION.asked:
            return
        if self._turns is not None:
            self._report_all()
            self._turns.give_to_learner(self.step)
        self._learning = self.fleet.call(
            "learner", LearnerRank.learn, self.step, self.settings, self._requests, self._coordinator
        )
        self.fleet.watch(self._learning, "learn on the learner workers")

    def _wait_for_learner(self) -> list[dict[str, float]]:
        """Wait for the learner ranks and return their results; meanwhile report published steps."""
        while self._steps_to_report:
            arrivals = self._steps_to_report[0].published
            purpose = f"learn, or version {self._steps_to_report[0].step} to reach the inference ranks"
            self.fleet.first([*arrivals, *self._learning], purpose)
            # If the learner has ended first, it comes before the report.
            if not self.fleet.ended(arrivals, 0):
                break
            self._report(self._steps_to_report.popleft())
        return self.fleet.wait(self._learning, "learn on the learner workers")

    def _begin_loops(self, group: str, method: RunLoop, purpose: str) -> list[Any]:
        loops = self.fleet.call(group, method, self.settings, self._requests, self._coordinator)
        if self._revivals.of(group):
            self.fleet.keep(group, loops, purpose, partial(self._revivals.begin, group))
        else:
            self.fleet.watch(loops, purpose)
        return loops

    def _evaluation(self) -> dict[str, float]:
        """Return the metrics of an evaluation; none if a request to end the run cuts it short."""
        try:
            with TERMINATION.at_once(), self._spans.span("evaluate", step=self.step):
                return prefixed("eval", self.evaluate())
        except Terminated:
            return {}

    def _save(self, *, before: Callable[[], None] = lambda: None) -> None:
        if self._turns is not None:
            self._turns.give_to_learner(self.step)
        with self._spans.span("save", step=self.step):
            if self.saver.save(self.step, last=self.step >= self.total, before=before):
                self._endings.saved = self.step

    def _end_early(self) -> None:
        """Save the last step, if it is not saved yet, and end the process as it was asked to."""
        self.display.note(f"asked to terminate: closing the gate after step {self.step}")
        self.fleet.let_go()
        self._coordinator.close_gate.remote()
        self._report_all()
        # A run that continues bit for bit does so only from a checkpoint that was due.
        if self.step not in (self._parts.step, self.saver.saved) and not self.settings.renews:
            self._save()
        is_saved = self.saver.saved == self.step
        self.display.note(
            f"saved {self._hooks.checkpoint(self.step)}" if is_saved else "nothing new is saved"
        )
        TERMINATION.end()

    def _report_all(self) -> None:
        while self._steps_to_report:
            self._report(self._steps_to_report.popleft())

    def _report(self, step: TrainedStep) -> None:
        # There is only one coordinator, and so one number.
        (lag,) = set(self._publication.wait(step.step, step.published))
        report, metrics = self._reporter.collect(step)
        metrics |= self._revivals.pop_metrics()
        self._log.step(report, metrics, step.metrics(lag))
        self._log.state.ledger = self.fetch_ledger()

    def _finish(self) -> None:
        """End the run when everything is trained: the gate has closed, and the loops return in turn."""
        self._report_all()
        # From here on a death costs nothing, as everything is trained.
        self.fleet.let_go()
        self.fleet.wait(self._env_loops, "the env shards to end")
        # After the shards have ended. A request that still waits is answered before the channel closes.
        self.fleet.run_on_living("requests", RequestChannel.close_requests)
        self.fleet.run("coordinator", Coordinator.close_weights)
        self.fleet.wait(self._inference_loops, "the inference ranks to drain")
        self.fleet.wait(self._channel_calls, "the request channels to end")
        # Last: a simulator that cannot be closed costs nothing any more.
        self.fleet.run_on_living("env", ShardWorker.close_envs)
        self._log.finish(self.fetch_ledger())
        self.fleet.kill()
        self._hooks.finished()

    def _observe(self) -> None:
        """Begin the run directory, have every process record its work, and poll all processes in every
        wait.
        """
        records = self._records
        make_directory(records.path)
        records.write_config(self._parts.config)
        # `fresh`: without a checkpoint, earlier files in the directory are not of this run.
        records.begin(
            self.settings.facts(),
            title=title_of(self.settings),
            versions=self._parts.versions,
            fresh=not self.step,
        )
        joining = [
            actor.join_run.remote(name, str(records.path), clock=self._coordinator)
            for name, actor in self._actors().items()
        ]
        self.fleet.wait(joining, "all processes to join the run")
        self._spans = SpanLog(records.trace, process=Process.DRIVER)
        answer_for_stacks(records.path, Process.DRIVER)
        self._revivals.join(self._spans)
        poller = StatusPoller(
            self._actors,
            records,
            stall_s=self.settings.asynchrony.advanced.stall_s,
            silent_s=self.settings.asynchrony.advanced.silent_s,
            guard=self._revivals,
            say=self.display.note,
            step=lambda: (self.step, self.total),
            look=self._gpu_shares.look,
        )
        # Every wait of the driver checks for signals, checks Ray, and polls the processes.
        self.fleet.while_waiting = lambda: min(TERMINATION.check(), self._watch.check(), poller.poll())

    def _actors(self) -> dict[str, Any]:
        """Return the present handles of all processes, by their names in records."""
        return {
            process.numbered(rank): actor
            for group, process in PROCESS_OF_GROUP.items()
            for rank, actor in enumerate(self.fleet.actors(group))
        }


class Publication:
    """Follows each version from the learner to all inference ranks.

    The learner offers its weights at the end of `learn` and goes on, and inference ranks fetch them.
    """

    def __init__(self, fleet: Fleet, coordinator: Handle, *, keeps: bool) -> None:
        """`keeps`: True if inference ranks may be restarted; a new rank needs all weights."""
        self._fleet = fleet
        self._coordinator = coordinator
        self._keeps = keeps

    def first(self, version: int) -> None:
        """Give every inference rank the weights at the start of the run."""
        types = self._fleet.run("inference", InferenceWorker.weight_types)[0]
        # Before the offer: the learner leaves out tensors that inference does not hold, and sends none in a
        # wider dtype.
        self._fleet.run("learner", LearnerRank.expect_receivers, types, self._keeps)
        self._fleet.run("learner", LearnerRank.offer_weights, version, self._coordinator)
        self.wait(version, self.follow(version))

    def follow(self, version: int) -> list[Any]:
        """Return calls that end when every inference rank acts by `version`, the learner's newest."""
        # Watched: a failure of the thread that sends the weights would show only at the deadline.
        self._fleet.watch(self._fleet.call("learner", LearnerRank.weights_sent), "sending weights")
        return self._fleet.call("coordinator", Coordinator.weights_published, version)

    def wait(self, version: int, arrivals: list[Any]) -> list[float]:
        """Wait for the calls that `follow` has returned; return the seconds from offer to arrival."""
        return self._fleet.wait(arrivals, f"the weights of version {version} to reach the inference ranks")


class Turns:
    """Has inference and simulators leave their accelerators before the learner needs them.

    The learner frees its accelerator, and inference comes back with new weights, without this class.
    """

    def __init__(self, fleet: Fleet, coordinator: Handle, *, batches: int) -> None:
        """`batches` is the number of global batches of the run."""
        self._fleet = fleet
        self._coordinator = coordinator
        self._batches = batches
        self._turn_of: int | None = None

    def give_to_learner(self, batch: int) -> None:
        """Wait until `batch` is collected, if it is one of the run, and have inference and simulators leave.

        Only the first call for a batch does anything.
        """
        if self._turn_of == batch:
            return
        self._turn_of = batch
        if batch < self._batches:
            rollouts = [self._coordinator.collected.remote(batch + 1)]
            self._fleet.wait(rollouts, f"the rollouts of batch {batch}")
        leaving = self._fleet.call("inference", InferenceWorker.leave) + self._fleet.call(
            "env", ShardWorker.leave
        )
        self._fleet.wait(leaving, "inference and simulators to leave their accelerators")


def check_versions(fleet: Fleet) -> None:
    """Check that all workers run the driver's version of this package.

    Raises:
        RuntimeError: a worker runs another version.
    """
    for name in ("env", "inference", "learner"):
        for rank, version in enumerate(fleet.run(name, RunProcess.plugin_version)):
            if version != __version__:
                raise RuntimeError(
                    f"{name} rank {rank} runs rlinf-async {version}, the driver {__version__}: install "
                    "the same version on every node"
                )


def title_of(settings: RunSettings) -> str:
    """Return a one-line description of a run."""
    plan, levels = settings.plan, words(settings.asynchrony.levels)
    return (
        f"rlinf-async {__version__}: levels {levels}; {plan.shards} shards of "
        f"{plan.envs_per_shard} environments; inference ranks {plan.inference_ranks}, learner ranks "
        f"{plan.learner_ranks}; staleness at most {settings.asynchrony.max_staleness}"
    )
