"""veRL's trainer mode `vla_async`: trains an embodied policy without a barrier between rollouts and
training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.utils.tracking import Tracking

from rlinf_async.hosts.async_block import plain, write_rollout
from rlinf_async.hosts.channels import start_channels, start_request_channel
from rlinf_async.hosts.host import make_ready
from rlinf_async.hosts.shard_choices import going_on
from rlinf_async.hosts.verl.checkpoint import claim, note_latest, resume_point, set_aside, step_folder
from rlinf_async.hosts.verl.config import fill_in, read, write_back
from rlinf_async.hosts.verl.explain import remarks
from rlinf_async.hosts.verl.installation import versions
from rlinf_async.hosts.verl.recognition import TRAINER_MODE
from rlinf_async.hosts.verl.view import VerlView
from rlinf_async.hosts.workers.env_actor import EnvActor
from rlinf_async.hosts.workers.inference_actor import InferenceActor
from rlinf_async.observe.display import RunDisplay
from rlinf_async.observe.metrics_outlet import MetricsOutlet
from rlinf_async.ray_runtime.checkpoints.saved_buffer import saved_plan
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.driver.launched_run import LaunchedRun
from rlinf_async.ray_runtime.driver.run import AsyncRun
from rlinf_async.termination import TERMINATION


class NoAgentLoop:
    """Replaces veRL's agent loops, which are not needed: env workers request actions themselves."""

    @classmethod
    def create(cls, **_: object) -> NoAgentLoop:
        return cls()


class LastingTracking(MetricsOutlet[Any]):
    """Replaces veRL's `Tracking`, which `make` builds, and survives its failures; veRL itself only calls
    `finish`.
    """

    def __init__(self, make: Callable[[], Any], *, say: Callable[[str], None]) -> None:
        super().__init__(
            make,
            # veRL counts batches from 1.
            write=lambda tracking, batch, metrics: tracking.log(data=dict(metrics), step=batch + 1),
            close=lambda tracking, exit_code: tracking.finish(exit_code=exit_code),
            # veRL's Tracking finishes once: finished here, its `__del__` cannot raise.
            drop=lambda tracking: tracking.finish(exit_code=1),
            say=say,
        )

    def finish(self, exit_code: int = 0) -> None:
        """Close the loggers, with another code than 0 after a failure; a second call does nothing."""
        self.close(exit_code=exit_code)


@register_trainer(TRAINER_MODE)
class VLAAsyncTrainer(PPOTrainer):
    """Starts the processes of a run, and has `AsyncRun` drive them; implements its `RunHooks`.

    The base class's constructor is not called, as it builds a buffer of prompts. veRL calls `init` (which
    calls `_setup` and `on_init_end`), three getters, and `fit`.
    """

    def __init__(self, config: DictConfig) -> None:
        self.config, self.trainer_mode, self.global_steps = config, TRAINER_MODE, 0
        self.checkpoint_callback = build_checkpoint_callback(config)
        self.logger: LastingTracking | None = None
        with open_dict(config):
            # veRL's own runner builds agent loops by this name between `init` and `fit`.
            config.actor_rollout_ref.rollout.agent.agent_loop_manager_class = f"{__name__}.NoAgentLoop"

    def _setup(self) -> None:
        """Check the config, and start every process."""
        # Imported here: veRL imports this module while it is being imported itself.
        from rlinf_async.hosts.verl.learner_worker import give_back, start_learners
        from rlinf_async.hosts.verl.processes import (
            check_places,
            start_env_workers,
            start_inference_ranks,
        )

        config, on_gpu = self.config, self.config.trainer.device != "cpu"
        TERMINATION.install()  # after Ray's start, and before models are loaded, which takes long
        make_ready(config)
        fill_in(config)
        self.settings = read(config)
        # Before `write_back`, which replaces the settings on which the remarks are.
        view = VerlView.of(plain(config))
        notes = list(remarks(view, self.settings))
        for note in (*map(str, write_back(config, self.settings)), *notes):
            RunDisplay().note(note)
        # For veRL's own command, which does not call `VerlHost.prepare` and `train`. After those, claiming
        # and setting aside again has no effect.
        claim(config)
        self._checkpoint, self.global_steps = resume_point(config, say=RunDisplay().note)
        if self._checkpoint is not None:
            self.settings = going_on(self.settings, saved_plan(self._checkpoint))
            write_rollout(config, self.settings)
        set_aside(config, goes_on=self._checkpoint is not None, say=RunDisplay().note)
        # Before the first process starts, as this run's own processes would count as taken places.
        check_places(view, self.settings, on_gpu=on_gpu)
        # Policy versions continue from the checkpoint's step.
        requests, coordinator = start_channels(self.settings, version=self.global_steps)
        workers = {
            "env": start_env_workers(view, self.settings),
            "inference": start_inference_ranks(view, self.settings, on_gpu=on_gpu),
        }
        learners = start_learners(config, view, self.settings)
        self._give_back = partial(give_back, learners)
        run = LaunchedRun(
            settings=self.settings,
            workers={**workers, "learner": learners.workers},
            requests=requests,
            request_channel_on=partial(start_request_channel, self.settings),
            coordinator=coordinator,
            hooks=self,
            run_dir=Path(config.vla.run_dir).absolute(),
            config=OmegaConf.to_yaml(config, resolve=True),
            versions=versions(),
            step=self.global_steps,
            total=self.settings.batches,
            rebuild={"env": EnvActor.initialise, "inference": InferenceActor.initialise},
            checkpoint=self._checkpoint,
            rate_settings=rate_settings(plain(config.actor_rollout_ref.actor.optim)),
            resume="trainer.resume_mode=auto",
        )
        self.run = AsyncRun(run)

    def on_init_end(self) -> None:
        """Have the processes build environments and policies, and load the checkpoint to resume from."""
        resume = partial(self._resume, self._checkpoint) if self._checkpoint else None
        self.run.prepare(self._initialise, resume=resume)

    def get_llm_client(self) -> None:
        """Return None: there is no server of a language model."""

    def get_teacher_client(self) -> None:
        """Return None: there is no teacher."""

    def get_reward_handles(self) -> list[Any]:
        """Return an empty list: there are no reward workers."""
        return []

    def fit(self, agent_loop_manager: object) -> None:
        """Train until the last step."""
        trainer = self.config.trainer
        # veRL's Tracking reads this variable, and without it writes into the current folder.
        os.environ.setdefault(
            "TENSORBOARD_DIR", str(Path(self.config.vla.run_dir).absolute() / "tensorboard")
        )
        make = partial(
            Tracking,
            project_name=trainer.project_name,
            experiment_name=trainer.experiment_name,
            default_backend=trainer.logger,
            config=plain(self.config),
        )
        self.logger = LastingTracking(make, say=self.run.display.note)
        self.run.train(evaluate_first=bool(trainer.val_before_train))

    def on_step_end(self) -> None:
        """Do nothing: the hook of veRL's own loop, which does not run."""

    def on_sample_end(self) -> None:
        """Do nothing: the hook of veRL's own loop, which does not run."""

    def due(self, step: int) -> tuple[bool, bool]:
        """Evaluate and save every `test_freq` and `save_freq` steps, and after the last one; see
        `RunHooks`.
        """
        trainer, last = self.config.trainer, step >= self.settings.batches
        evaluate, save = (
            every is not None and every > 0 and (last or step % every == 0)
            for every in (trainer.test_freq, trainer.save_freq)
        )
        return evaluate, save

    def checkpoint(self, step: int) -> Path:
        """Return veRL's folder for the checkpoint after `step`."""
        return step_folder(self.config, step)

    def save(self, step: int, folder: Path) -> None:
        """Write veRL's checkpoint of every learner rank.

        Old checkpoints are removed by `async.advanced.keep_checkpoints` (which `config` derives from veRL's
        keys), not by veRL: it would look for them under their temporary names.
        """
        self.global_steps = step
        self.run.saver.save_learners(str(folder / "actor"), None, step, None)

    def saved(self, step: int, folder: Path) -> None:
        """Record the checkpoint as the newest, and call veRL's checkpoint callback."""
        note_latest(self.config, step)
        self.checkpoint_callback.on_save(
            trainer=self, global_step=step, checkpoint_dir=str(folder), async_save=False
        )

    def log(self, batch: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics to veRL's loggers; see `RunHooks`."""
        assert self.logger is not None
        self.logger.log(batch, metrics)

    def finished(self) -> None:
        """Free the learner ranks' places in Ray; veRL closes the loggers. See `RunHooks`."""
        self._give_back()

    def _initialise(self, fleet: Fleet) -> None:
        # All calls are made before the wait, so that environments and policies are built at the same time.
        building = [
            *fleet.call("env", EnvActor.initialise),
            *fleet.call("inference", InferenceActor.initialise),
        ]
        fleet.wait(building, "environments and policies to be built")

    def _resume(self, folder: Path, fleet: Fleet) -> None:
        fleet.run_framework(
            "learner",
            "load_checkpoint",
            str(folder / "actor"),
            None,
            self.config.trainer.del_local_ckpt_after_load,
        )


SHAPE_KEYS = ("total_training_steps", "num_cycles", "min_lr_ratio", "zero_indexed_step")
"""Keys of `actor_rollout_ref.actor.optim` on which every schedule but the constant one depends."""


def rate_settings(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the schedule in veRL's `actor_rollout_ref.actor.optim`, as its engine reads
    them; `total_training_steps` has been filled in.

    Runs with equal settings and the same `lr` have the same rates at the same steps.
    """
    kind = str(optim.get("warmup_style") or optim.get("lr_scheduler_type") or "constant")
    warm_up = int(optim.get("lr_warmup_steps") or 0)
    if warm_up <= 0:
        warm_up = int(float(optim.get("lr_warmup_steps_ratio") or 0.0) * optim["total_training_steps"])
    shape = {} if kind == "constant" else {key: optim.get(key) for key in SHAPE_KEYS}
    return {"lr_scheduler_type": kind, "steps of warm-up": warm_up, **shape}
