"""RLinf's embodied runner without a barrier between rollouts and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.channels import start_channels, start_request_channel
from rlinf_async.hosts.rlinf.borrowed import (
    EmbodiedRunner,
    MetricLogger,
    check_progress,
)
from rlinf_async.hosts.rlinf.checkpoints import AUTO_RESUME, checkpoints, resume_step
from rlinf_async.hosts.rlinf.config import machines, resolve
from rlinf_async.hosts.rlinf.gpu_shares import shared_gpus
from rlinf_async.hosts.rlinf.metrics import in_rlinf_words, metrics_outlet
from rlinf_async.hosts.rlinf.tree import versions
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.hosts.rlinf.worker_groups import ENV_WORKERS, clear_failure
from rlinf_async.hosts.shard_choices import going_on
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.ending import as_exit
from rlinf_async.observe.files import make_directory
from rlinf_async.ray_runtime.checkpoints.saved_buffer import saved_plan
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.driver.launched_run import LaunchedRun
from rlinf_async.ray_runtime.driver.run import AsyncRun


class AsyncEmbodiedRunner(EmbodiedRunner):
    """An `AsyncRun` with the interface of RLinf's runner; it implements the hooks of the run.

    A step means the same as in RLinf: a global batch of trajectories, its optimizer steps, a weight sync.
    """

    def __init__(
        self,
        cfg: DictConfig,
        actor: Any,
        rollout: object,
        env: Any,
        reward: object = None,
        critic: object = None,
    ) -> None:
        # `__init__` of the base class is not called: it would start three channel processes that are not
        # used.
        self.cfg, self.actor, self.rollout, self.env = cfg, actor, rollout, env
        self.reward, self.critic = reward, critic
        groups = {"env": env, "rollout": rollout, "actor": actor}
        check_classes(groups)
        settings = resolve(cfg, sizes={name: len(group.worker_info_list) for name, group in groups.items()})
        resume_dir = cfg.runner.get("resume_dir")
        if resume_dir:
            settings = going_on(settings, saved_plan(Path(resume_dir)))
        self.settings = replace(settings, reward_workers=tuple(_reward_workers(cfg, reward)))
        step = resume_step(resume_dir, digests=False)
        self.max_steps = settings.batches
        self.display = RunDisplay()
        self._outlet = metrics_outlet(partial(MetricLogger, cfg), self.display.note)
        requests, coordinator = start_channels(self.settings, version=step)
        parts = LaunchedRun(
            settings=self.settings,
            workers={"env": _actors(env), "inference": _actors(rollout), "learner": _actors(actor)},
            requests=requests,
            request_channel_on=partial(start_request_channel, self.settings),
            coordinator=coordinator,
            hooks=self,
            run_dir=Path(cfg.runner.logger.log_path).absolute(),
            config=OmegaConf.to_yaml(cfg, resolve=True),
            versions=versions(),
            step=step,
            total=self.max_steps,
            checkpoint=Path(resume_dir) if resume_dir else None,
            rate_settings=rate_settings(plain(cfg.actor.optim)),
            resume=f"++runner.resume_dir={AUTO_RESUME}",
            takes_turns=self.settings.takes_turns,
            shared_gpus=shared_gpus(plain(cfg), self.settings, machines(cfg)),
            # Names of our workers' methods, called through Ray. RLinf's `init_worker` of an env worker would
            # wait for the other env workers, which are already running.
            rebuild={"env": "init_again", "inference": "init_worker"},
            elsewhere={"env": ENV_WORKERS.hand_over().start_elsewhere},
        )
        self._run = AsyncRun(parts, display=self.display)

    @property
    def global_step(self) -> int:
        """The number of trained steps."""
        return self._run.step

    def init_workers(self) -> None:
        """Build environments, models and optimizer; raise an error if a worker lacks this package."""
        with _leaving_quietly():
            self._run.prepare(self._initialise, resume=self._load_checkpoint)

    def run(self) -> None:
        """Train until `max_steps`, then print the summary."""
        with _leaving_quietly():
            self._run.train()

    def evaluate(self) -> dict[str, float]:
        """Evaluate the published version, while rollouts for training go on."""
        return self._run.evaluate()

    def due(self, step: int) -> tuple[bool, bool]:
        """Return two flags, by RLinf's own `check_progress`: evaluate after `step`, and save after `step`."""
        runner = self.cfg.runner
        # 1.0: `limit_val_batches`, no limit, as in RLinf's own runner.
        evaluate, save, _ = check_progress(
            step, self.max_steps, runner.val_check_interval, runner.save_interval, 1.0
        )
        return evaluate, save

    def checkpoint(self, step: int) -> Path:
        """Return RLinf's folder for the checkpoint after `step`."""
        return checkpoints(self.cfg) / f"global_step_{step}"

    def save(self, step: int, folder: Path) -> None:
        """Write RLinf's own checkpoint of the actor."""
        actor = folder / "actor"
        make_directory(actor, private=False)
        self._run.saver.save_learners(str(actor.absolute()), step)

    def saved(self, step: int, folder: Path) -> None:
        """Show the same note as RLinf."""
        self.display.note(f"Saved checkpoint {folder}")

    def log(self, batch: int, metrics: Mapping[str, float]) -> None:
        """Write metrics to RLinf's loggers, with times under RLinf's names as well."""
        self._outlet.log(batch, {**metrics, **in_rlinf_words(metrics)})

    def finished(self) -> None:
        """Close the loggers, and clear the failure status that RLinf keeps for the end of the process."""
        self._outlet.close()
        # Last: an error before this line must end the process with a failure's status.
        clear_failure()

    def _initialise(self, fleet: Fleet) -> None:
        scorers = [worker.init_worker.remote() for worker in self.settings.reward_workers]
        init = [
            *fleet.call_framework("inference", "init_worker"),
            *fleet.call_framework("env", "init_worker"),
            *scorers,
        ]
        fleet.wait(init, "init_worker on the inference, env and reward workers")
        if not all(fleet.run_framework("inference", "can_score")):
            self.settings = replace(
                self.settings, learner_scores="the rollout workers have only an engine of their own"
            )
            self._run.settings = self.settings
        # After the others, as in RLinf's `init_workers`, so that fewer models are loaded at a time.
        fleet.run_framework("learner", "init_worker")

    def _load_checkpoint(self, fleet: Fleet) -> None:
        if resume_dir := self.cfg.runner.get("resume_dir"):
            fleet.run_framework("learner", "load_checkpoint", str(Path(resume_dir) / "actor"))


@contextmanager
def _leaving_quietly() -> Iterator[None]:
    """Turn an interrupt, which is already recorded, into an exit, so that RLinf's scripts print no
    traceback.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise as_exit(interrupt) from None


def check_classes(groups: Mapping[str, Any]) -> None:
    """Check that all worker groups are of this package's classes.

    Raises:
        TypeError: a group is of RLinf's own.
    """
    for name, group in groups.items():
        if not hasattr(group, "plugin_version"):
            raise TypeError(
                f"the {name} workers are {group.worker_cls_name}, which cannot run asynchronously; provide a "
                f"subclass of rlinf-async's worker by an entry point rlinf_async.workers: {name}"
            )


def _reward_workers(cfg: DictConfig, group: Any) -> list[Any]:
    """Return Ray's handles of the reward workers, if the run has a reward model.

    Raises:
        ValueError: it has a reward model and no reward workers.
    """
    if not RLinfView.of(plain(cfg)).scored_by_workers:
        return []
    if group is None:
        raise ValueError(
            "reward.use_reward_model=True, and the script that runs has started no reward workers: give its "
            "runner RLinf's EmbodiedRewardWorker as `reward`, or set reward.use_reward_model=false"
        )
    return _actors(group)


def _actors(group: Any) -> list[Any]:
    """Return Ray's handles of a worker group. They are called directly, as RLinf's group kills the driver on
    a failure.
    """
    return [worker.worker for worker in group.worker_info_list]


SHAPE_KEYS = ("total_training_steps", "num_cycles", "min_lr", "min_lr_rate")
"""Keys of `actor.optim` on which every schedule but the constant one depends."""


def rate_settings(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the schedule in RLinf's `actor.optim`, as its `build_lr_scheduler` reads them.

    Runs with equal settings and the same `lr` have the same rates at the same steps.
    """
    kind = str(optim.get("lr_scheduler", "constant"))
    warm_up = int(optim.get("lr_warmup_steps", -1))  # no null, as `write_nulls` has replaced it
    if warm_up < 0:
        share = float(optim.get("lr_warmup_steps_ratio") or 0.0)
        warm_up = int(share * (optim.get("total_training_steps") or 0))
    shape = {} if kind == "constant" else {key: optim.get(key) for key in SHAPE_KEYS}
    return {"lr_scheduler": kind, "steps of warm-up": warm_up, **shape}
