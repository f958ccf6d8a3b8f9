"""One environment shard of an RLinf env worker, as the env loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from rlinf_async.entry_points import TAKE_ON_METHOD
from rlinf_async.hosts.contract import Contract, finite_fields
from rlinf_async.hosts.kit import shard as kit
from rlinf_async.hosts.kit.ends import Ends
from rlinf_async.hosts.kit.playing import Playing, StandingVectorEnv, as_they_ended, let_play
from rlinf_async.hosts.kit.shard import Shown
from rlinf_async.hosts.rlinf.borrowed import OBSERVED_FIELDS
from rlinf_async.hosts.rlinf.compat import Known, evaluate_step, interact_step, known_configs
from rlinf_async.hosts.rlinf.episode_starts import STAND_METHOD
from rlinf_async.hosts.rlinf.known_config import KnownConfig
from rlinf_async.hosts.rlinf.skipped_work import stands
from rlinf_async.hosts.rlinf.trajectory import EnvStep, ShardOutput
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.meters import BusyMeter

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.rewards import ShardRewards

LENGTH_STATISTIC, RLINF_LENGTH_STATISTIC = "episode_len", "episode_len_to_horizon"
"""Statistics of the steps of an episode up to its end, and of the steps that RLinf would count."""
END_FIELDS = ("dones", "terminations", "truncations")


class ContractedEnv:
    """Environments with the interface that RLinf's env worker steps; a `Contract` checks their outputs."""

    def __init__(self, env: Any, contract: Contract, steps: int) -> None:
        """`steps`: the steps of a decision."""
        # Messages name the environments, not RLinf's wrappers of them (`RecordVideo`, `InsertDelay`).
        self._env, self._contract, self._steps = env, contract.of(getattr(env, "unwrapped", env)), steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._contract.reset(self._env.reset())

    def chunk_step(self, actions: Any) -> tuple[Any, ...]:
        step = self._contract.step(self._env.chunk_step(actions), steps=self._steps)
        # Lists: RLinf takes the last item, and has no observation if it gets no list.
        return [step.observation], step.rewards, step.terminations, step.truncations, [step.info]


class WorkerStage:
    """A stage of an RLinf env worker, for training or evaluation."""

    def __init__(self, worker: Any, number: int, mode: Literal["train", "eval"]) -> None:
        self.worker, self.number, self.mode = worker, number, mode

    @property
    def envs(self) -> list[Any]:
        """The environments of all stages of the worker."""
        return self.worker.env_list if self.mode == "train" else self.worker.eval_env_list

    @property
    def env(self) -> Any:
        return self.envs[self.number]

    # Looked up once, as nothing changes the config while shards run, and each read takes some 20 us.

    @cached_property
    def section(self) -> KnownConfig:
        return KnownConfig(self.worker.cfg.env[self.mode])

    @cached_property
    def known(self) -> Known:
        """The configs that RLinf's steps of these environments read."""
        method = "env_interact_step" if self.mode == "train" else "env_evaluate_step"
        return known_configs(self.worker, method)

    @cached_property
    def steps(self) -> int:
        """The steps of a decision."""
        return int(self.worker.cfg.actor.model.num_action_chunks)

    def sizes(self) -> dict[str, Any]:
        """Return the sizes of a shard, and the fields of observations that RLinf's policies get."""
        horizon = int(self.section.max_steps_per_rollout_epoch) // self.steps
        return {"size": self.worker.envs_per_shard(self.mode), "horizon": horizon, "fields": OBSERVED_FIELDS}

    def env_behind(self, contract: Contract) -> ContractedEnv:
        return ContractedEnv(self.env, contract, self.steps)

    def let_play(self, playing: Playing | None) -> bool:
        """Step only the simulators of `playing` in the next decision (None: all); False if it steps all."""
        if self._stands:
            StandingVectorEnv.within(self.env).let_play(None if playing is None else playing.numbers)
            return True
        # RLinf's other simulators were not examined; a class of the user's declares it by the method.
        return bool(self.section.get("env_class")) and let_play(self.env, playing)

    @cached_property
    def _stands(self) -> bool:
        return stands(self.section)

    def flush_video(self) -> None:
        """Write the video of a rollout, if the config records one."""
        if self.section.video_cfg.save_video:
            flush = env_attribute(self.env, "flush_video")
            if callable(flush):
                flush()


class TrainShard(kit.TrainShard[ShardOutput]):
    """Training environments of one stage, with RLinf's own stepping."""

    def __init__(
        self,
        worker: Any,
        stage: int,
        simulators: SimulatorThread,
        busy: BusyMeter,
        *,
        rewards: ShardRewards | None = None,
        waits_for_rewards: bool = True,
        skips_ended: bool = False,
        say_endless: Callable[[str], object] | None = None,
    ) -> None:
        """
        Args:
            rewards: the rewards of a reward model, if the run has one.
            waits_for_rewards: True to wait for the rewards of a step before the next step, as RLinf does.
            say_endless: called with a sentence if an episode has no end; None if another shard checks this.
        """
        self._stage = WorkerStage(worker, stage, "train")
        sizes = self._stage.sizes()
        steps = sizes["horizon"] * self._stage.steps
        ends = Ends.of(self._stage.section, rollout=steps, say=say_endless) if say_endless else None
        super().__init__(simulators, busy=busy, number=stage, ends=ends, skips_ended=skips_ended, **sizes)
        self._rewards, self._waits_for_rewards = rewards, waits_for_rewards
        self._over = torch.zeros(self.size, dtype=torch.bool)

    def playing_at(self, output: ShardOutput) -> Playing | None:
        return output.playing

    def stand(self, playing: Playing | None) -> None:
        self.others_stand = self._skips_ended and self._stage.let_play(playing)

    async def step(self, answer: Mapping[str, Any]) -> ShardOutput:
        output = await super().step(answer)
        if self._rewards is not None:
            self._rewards.begin(output.env)
            if self._waits_for_rewards:
                await output.env.scored()
        return output

    async def settle(self) -> None:
        """Wait for the delay that `env.delay_sampler` drew, in RLinf versions that leave this wait to the
        worker.
        """
        wait = env_attribute(self._stage.env, "wait_delay")
        if wait is not None:
            await wait()

    def shown(self, output: ShardOutput) -> dict[str, Any]:
        """Return the fields of an env output that RLinf's rollout worker reads."""
        return {"obs": output.env.obs, "final_obs": output.env.final_obs}

    def forget(self) -> None:
        # With `auto_reset` the next rollout begins from the worker's first observation of the rebuilt ones.
        super().forget()
        if self._rewards is not None:
            self._rewards.forget()

    def begin(self) -> Shown[ShardOutput]:
        self._over = torch.zeros(self.size, dtype=torch.bool)
        output = self._carried_on() if self._stage.section.auto_reset else self._reset()
        # As RLinf's `bootstrap_step`: the row before the first decision, [environments, steps], has no end of
        # an episode. RLinf's `compute_loss_mask` needs that row.
        for name in END_FIELDS:
            setattr(output, name, torch.zeros((self.size, self._stage.steps), dtype=torch.bool))
        return ShardOutput(output), shown_of(output)

    def _carried_on(self) -> EnvStep:
        if self._last is None:
            worker = self._stage.worker
            return EnvStep(obs=self.contract.observation(worker.first_observations[self._stage.number]))
        last = self._last.env
        # RLinf also passes on the last intervention (`store_last_obs_and_intervened_info`).
        return EnvStep(
            obs=self.contract.again(last.obs),
            intervene_actions=last.intervene_actions,
            intervene_flags=last.intervene_flags,
        )

    def _reset(self) -> EnvStep:
        env = self._stage.env
        # As RLinf's `bootstrap_step` does before every reset.
        env.is_start = True
        if self._stage.section.get("env_class"):
            if self._taken_on is not None:
                env_attribute(env, TAKE_ON_METHOD)(*self._taken_on)
        # RLinf's other environments draw the tasks of any place at random.
        elif self._stands_at is not None and (stand_at := env_attribute(env, STAND_METHOD)) is not None:
            stand_at(*self._stands_at)
        observation, infos = self._stage.env_behind(self.contract).reset()
        return EnvStep(obs=observation, final_obs=infos.get("final_observation"))

    def act(self, actions: Any) -> Shown[ShardOutput]:
        stage = self._stage
        env = stage.env_behind(self.contract)
        step, info = interact_step(stage.worker, actions, stage.number, env, stage.known)
        if self._playing is not None and self._last is not None:
            info = as_they_ended(info, self._last.info, over=self._over)
        if self._skips_ended and LENGTH_STATISTIC in info and not stage.section.get("env_class"):
            # RLinf's environments count steps after an end as well, up to the horizon.
            horizon = torch.full_like(info[LENGTH_STATISTIC], self.horizon * stage.steps)
            info = {**info, RLINF_LENGTH_STATISTIC: horizon}
        assert step.dones is not None, "a step has ends"
        # As RLinf's `compute_loss_mask`: an end in any step of a decision masks all decisions after it.
        self._over = self._over | step.dones.any(dim=1)
        self._last = ShardOutput(step, info, self.play_on(self._over))
        return self._last, shown_of(step, info)

    def end(self) -> None:
        self._stage.flush_video()
        self._stage.env.update_reset_state_ids()

    def rebuild(self) -> None:
        self._stage.worker.rebuild("train", self._stage.number)

    def rebuild_at(self, step: int) -> None:
        self._stage.worker.renew(self._stage.number, step)


class EvalShard(kit.EvalShard[EnvStep]):
    """Evaluation environments of one stage."""

    def __init__(
        self, worker: Any, stage: int, simulators: SimulatorThread, *, skips_ended: bool = False
    ) -> None:
        self._stage = WorkerStage(worker, stage, "eval")
        # With `auto_reset` no environment waits: its next episode begins.
        skips_ended = skips_ended and not self._stage.section.auto_reset
        super().__init__(simulators, skips_ended=skips_ended, **self._stage.sizes())

    def stand(self, playing: Playing | None) -> None:
        self.others_stand = self._skips_ended and self._stage.let_play(playing)

    def shown(self, output: EnvStep) -> dict[str, Any]:
        return {"obs": output.obs, "final_obs": None}

    def begin(self) -> Shown[EnvStep]:
        stage, worker = self._stage, self._stage.worker
        if stage.section.auto_reset and self._last is not None:
            # Not checked again: this output was checked when it arrived.
            return self._last, {}
        stage.env.is_start = True
        # RLinf's `env_evaluate_step` counts the first end of each environment while this is False.
        worker.eval_prev_done[stage.number] = torch.zeros(self.size, dtype=torch.bool)
        observation, _ = stage.env_behind(self.contract).reset()
        output = EnvStep(obs=observation)
        return output, shown_of(output)

    def act(self, actions: Any) -> Shown[EnvStep]:
        stage, numbers = self._stage, actions.detach().cpu().numpy()
        env = stage.env_behind(self.contract)
        self._last, info = evaluate_step(stage.worker, numbers, stage.number, env, stage.known)
        if info:
            self.episodes.append(info)
        if not stage.section.auto_reset:
            # RLinf counts an episode once, when the last step of a decision has its end.
            self.play_on(stage.worker.eval_prev_done[stage.number])
        return self._last, shown_of(self._last, info)

    def end(self) -> None:
        self._stage.flush_video()
        # As RLinf's `finish_rollout`: always for training, for evaluation only if a reset follows.
        if not self._stage.section.auto_reset:
            self._stage.env.update_reset_state_ids()

    def rebuild(self) -> None:
        self._stage.worker.rebuild("eval", self._stage.number)


def shown_of(step: EnvStep, statistics: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the values of a step that must be finite, by name."""
    return finite_fields(step.obs, step.rewards, step.final_obs, statistics)


def env_attribute(env: Any, name: str) -> Any:
    """Return the attribute `name` of environments, or of those that they wrap; None without one."""
    if not hasattr(env, "get_wrapper_attr"):
        return getattr(env, name, None)
    try:
        return env.get_wrapper_attr(name)
    # gymnasium's wrappers raise if neither they nor the wrapped environments have the attribute.
    except AttributeError:
        return None
